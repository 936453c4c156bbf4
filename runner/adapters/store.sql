-- Every statement that the store gives to SQLite, by name.

-- name: schema
-- Version 1.  A stored name is never reused; a newer version is refused and left untouched.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE jobs (
    id           INTEGER PRIMARY KEY,
    name         TEXT NOT NULL,
    uid          INTEGER NOT NULL,
    gid          INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    submitted_at TEXT NOT NULL,
    priority     INTEGER NOT NULL,
    state        TEXT NOT NULL,
    ended_at     TEXT,
    job          TEXT NOT NULL,
    revision     TEXT NOT NULL,
    labels       TEXT NOT NULL,
    token        TEXT UNIQUE
) STRICT;
CREATE INDEX jobs_by_name ON jobs (name, id);
CREATE INDEX jobs_unfinished ON jobs (state) WHERE state != 'finished';
CREATE INDEX jobs_by_end ON jobs (ended_at);
CREATE TABLE attempts (
    job_id          INTEGER NOT NULL REFERENCES jobs,
    number          INTEGER NOT NULL,
    lineage         INTEGER NOT NULL,
    image           TEXT NOT NULL,
    placed_at       TEXT NOT NULL,
    launched_at     TEXT,
    ended_at        TEXT,
    exit_code       INTEGER,
    cause           TEXT,
    message         TEXT,
    verdict         TEXT,
    checkpoint_step INTEGER,
    PRIMARY KEY (job_id, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs,
    at     TEXT NOT NULL,
    kind   TEXT NOT NULL,
    text   TEXT NOT NULL,
    body   TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job_id, seq);
PRAGMA user_version = 1;

-- name: set_meta
INSERT OR REPLACE INTO meta (key, value) VALUES (:key, :value);

-- name: get_meta
SELECT value FROM meta WHERE key = :key;

-- name: next_id
SELECT coalesce(max(id), 0) + 1 FROM jobs;

-- name: add_job
INSERT INTO jobs (id, name, uid, gid, owner, submitted_at, priority, state, job, revision, labels, token)
VALUES (:id, :name, :uid, :gid, :owner, :submitted_at, :priority, :state, :job, :revision, :labels, :token);

-- name: update_job
UPDATE jobs SET state = :state, job = :job, ended_at = :ended_at WHERE id = :id;

-- name: add_event
INSERT INTO events (job_id, at, kind, text, body) VALUES (:job_id, :at, :kind, :text, :body);

-- name: add_attempt
INSERT INTO attempts (job_id, number, lineage, image, placed_at)
VALUES (:job_id, :number, :lineage, :image, :at);

-- name: drop_attempt
-- The image was missing: the attempt never began and its number is used again.
DELETE FROM attempts WHERE job_id = :job_id AND number = :number;

-- name: attempt_launched
UPDATE attempts SET launched_at = :at WHERE job_id = :job_id AND number = :number;

-- name: attempt_ended
UPDATE attempts
SET ended_at = :at, exit_code = :exit_code, cause = :cause, message = :message, verdict = :verdict,
    checkpoint_step = :checkpoint_step
WHERE job_id = :job_id AND number = :number AND ended_at IS NULL;

-- name: unfinished
SELECT * FROM jobs WHERE state != 'finished' ORDER BY id;

-- name: job_by_id
SELECT * FROM jobs WHERE id = :id;

-- name: job_by_name
SELECT * FROM jobs WHERE name = :name ORDER BY id DESC LIMIT 1;

-- name: job_by_token
SELECT * FROM jobs WHERE token = :token;

-- name: recent
SELECT * FROM jobs WHERE (ended_at IS NULL OR ended_at >= :since) AND (:uid IS NULL OR uid = :uid)
ORDER BY id DESC LIMIT :limit;

-- name: attempts_of
SELECT * FROM attempts WHERE job_id = :job_id ORDER BY number;

-- name: attempt_ended_at
SELECT ended_at FROM attempts WHERE job_id = :job_id AND number = :number;

-- name: events_after
SELECT events.*, jobs.name AS name FROM events JOIN jobs ON jobs.id = events.job_id
WHERE seq > :after AND (:job_id IS NULL OR job_id = :job_id) ORDER BY seq LIMIT :limit;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events;

-- name: count_states
SELECT state, count(*) FROM jobs GROUP BY state;
