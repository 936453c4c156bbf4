-- Every statement that the store gives to SQLite, by name.  One with a row of VALUES may be given several rows.

-- name: schema
-- Of version 5, the oldest that is converted; a new store goes through the versions after it, too.  A stored name is
-- never reused.
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
    labels       TEXT NOT NULL,
    token        TEXT UNIQUE
) STRICT;
CREATE INDEX jobs_by_name ON jobs (name, id);
CREATE INDEX jobs_unfinished ON jobs (state) WHERE state != 'finished';
CREATE INDEX jobs_by_end ON jobs (ended_at);
-- A list of one's own jobs must not look at everybody's.
CREATE INDEX jobs_by_owner ON jobs (uid, id, ended_at);
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
-- Decisions of policies.
CREATE TABLE decisions (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id  INTEGER NOT NULL REFERENCES jobs,
    attempt INTEGER NOT NULL,
    moment  TEXT NOT NULL,
    at      TEXT NOT NULL,
    body    TEXT NOT NULL
) STRICT;
CREATE INDEX decisions_by_job ON decisions (job_id, attempt, seq);
-- A text is kept once, however many jobs have it; edits lead from it to the revision (JSON).
CREATE TABLE texts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL) STRICT;
-- Every revision of a job file; lineage is that of its last attempt, once another revision has replaced it.
CREATE TABLE revisions (
    job_id  INTEGER NOT NULL REFERENCES jobs,
    number  INTEGER NOT NULL,
    at      TEXT NOT NULL,
    by      TEXT NOT NULL,
    why     TEXT NOT NULL,
    text_id INTEGER NOT NULL REFERENCES texts,
    edits   TEXT NOT NULL,
    lineage INTEGER,
    PRIMARY KEY (job_id, number)
) STRICT, WITHOUT ROWID;
CREATE VIEW whole_jobs AS
SELECT jobs.*, newest.text_id AS text_id, newest.edits AS edits
FROM jobs LEFT JOIN revisions AS newest ON newest.job_id = jobs.id
    AND newest.number = (SELECT max(number) FROM revisions WHERE job_id = jobs.id);
-- What each attempt held, and for how long: the basis of fair share and of usage reports.
CREATE TABLE lendings (
    job_id    INTEGER NOT NULL REFERENCES jobs,
    attempt   INTEGER NOT NULL,
    uid       INTEGER NOT NULL,
    owner     TEXT NOT NULL,
    team      TEXT NOT NULL,
    gpus      INTEGER NOT NULL,
    cpus      REAL NOT NULL,
    devices   TEXT NOT NULL,
    placed_at TEXT NOT NULL,
    ended_at  TEXT,
    PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX lendings_by_end ON lendings (ended_at);
-- The admin state that an operator or the daemon has given to a device.
CREATE TABLE devices (
    uuid   TEXT PRIMARY KEY,
    state  TEXT NOT NULL,
    reason TEXT NOT NULL,
    by     TEXT NOT NULL,
    since  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- Utilisation of an attempt's devices: the device-seconds measured, and those of them that were busy.
CREATE TABLE utilisation (
    job_id   INTEGER NOT NULL REFERENCES jobs,
    attempt  INTEGER NOT NULL,
    device_s REAL NOT NULL,
    busy_s   REAL NOT NULL,
    PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;
-- Schedules and their firings; all firings before looked_at are settled.
CREATE TABLE schedules (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    name      TEXT NOT NULL,
    uid       INTEGER NOT NULL,
    gid       INTEGER NOT NULL,
    owner     TEXT NOT NULL,
    path      TEXT NOT NULL,
    text      TEXT NOT NULL,
    terms     TEXT NOT NULL,
    token     TEXT UNIQUE,
    made_at   TEXT NOT NULL,
    looked_at TEXT NOT NULL,
    state     TEXT NOT NULL,
    note      TEXT NOT NULL
) STRICT;
CREATE INDEX schedules_active ON schedules (state) WHERE state = 'active';
CREATE TABLE occasions (
    schedule INTEGER NOT NULL REFERENCES schedules,
    at       TEXT NOT NULL,
    state    TEXT NOT NULL,
    job_id   INTEGER REFERENCES jobs,
    text     TEXT NOT NULL,
    PRIMARY KEY (schedule, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX occasions_by_job ON occasions (job_id);
CREATE INDEX occasions_due ON occasions (state) WHERE state = 'due';
-- How long attempts took from their launch to their first step, in seconds, where that was seen.
CREATE TABLE starts (
    job_id  INTEGER NOT NULL REFERENCES jobs,
    attempt INTEGER NOT NULL,
    start_s REAL NOT NULL,
    PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 5;

-- name: version_6
-- What would grow with everything that ever finished is kept as sums.  Triggers count jobs by state.
CREATE TABLE job_counts (state TEXT PRIMARY KEY, jobs INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO job_counts (state, jobs) SELECT state, count(*) FROM jobs GROUP BY state;
CREATE TRIGGER jobs_counted AFTER INSERT ON jobs BEGIN
    INSERT INTO job_counts (state, jobs) VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER jobs_recounted AFTER UPDATE OF state ON jobs WHEN old.state != new.state BEGIN
    UPDATE job_counts SET jobs = jobs - 1 WHERE state = old.state;
    INSERT INTO job_counts (state, jobs) VALUES (new.state, 1) ON CONFLICT (state) DO UPDATE SET jobs = jobs + 1;
END;
-- What attempts held that ended some time ago is summed by hours since 1970, user and team.  An attempt began in
-- one of its hours and was carried into the others.
ALTER TABLE lendings ADD COLUMN summed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX lendings_unsummed ON lendings (ended_at) WHERE summed = 0;
CREATE TABLE usage_hours (
    hour              INTEGER NOT NULL,
    owner             TEXT NOT NULL,
    team              TEXT NOT NULL,
    began             INTEGER NOT NULL,
    carried           INTEGER NOT NULL,
    device_s          REAL NOT NULL,
    cpu_s             REAL NOT NULL,
    useful_device_s   REAL NOT NULL,
    useful_cpu_s      REAL NOT NULL,
    measured_device_s REAL NOT NULL,
    busy_device_s     REAL NOT NULL,
    PRIMARY KEY (hour, owner, team)
) STRICT, WITHOUT ROWID;
-- What each attempt held, when its program started, and what of its work was saved.
CREATE VIEW used_attempts AS
SELECT lendings.*, jobs.name AS name, attempts.launched_at AS launched_at, attempts.cause AS cause,
    utilisation.device_s AS device_s, utilisation.busy_s AS busy_s, starts.start_s AS start_s,
    (SELECT json_extract(iif(json_valid(decisions.body), decisions.body, '{}'), '$.facts."progress.advanced"',
         '$.facts."checkpoint.age_s"', '$.facts.killed_by')
     FROM decisions
     WHERE decisions.job_id = lendings.job_id AND decisions.attempt = lendings.attempt AND moment = 'exit'
     ORDER BY seq DESC LIMIT 1) AS left
FROM lendings
JOIN jobs ON jobs.id = lendings.job_id
LEFT JOIN attempts ON attempts.job_id = lendings.job_id AND attempts.number = lendings.attempt
LEFT JOIN utilisation ON utilisation.job_id = lendings.job_id AND utilisation.attempt = lendings.attempt
LEFT JOIN starts ON starts.job_id = lendings.job_id AND starts.attempt = lendings.attempt;
CREATE INDEX switch_requests ON events (at) WHERE kind = 'preempt_requested';
CREATE INDEX attempts_by_end ON attempts (ended_at);
PRAGMA user_version = 6;

-- name: add_decision
INSERT INTO decisions (job_id, attempt, moment, at, body) VALUES (:job_id, :attempt, :moment, :at, :body);

-- name: decisions_of
SELECT * FROM decisions WHERE job_id = :job_id AND (:attempt IS NULL OR attempt = :attempt) ORDER BY seq;

-- name: set_meta
INSERT OR REPLACE INTO meta (key, value) VALUES (:key, :value);

-- name: get_meta
SELECT value, key FROM meta WHERE key = :key;

-- name: drop_meta
DELETE FROM meta WHERE key = :key;

-- name: reserve
CREATE TABLE reserve (room BLOB);
INSERT INTO reserve VALUES (zeroblob(4194304));
DROP TABLE reserve;

-- name: ids_among
SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: other_image
SELECT 1 FROM attempts WHERE image != :image LIMIT 1;

-- name: next_id
SELECT coalesce(max(id), 0) + 1 FROM jobs;

-- name: add_job
INSERT INTO jobs (id, name, uid, gid, owner, submitted_at, priority, state, job, labels, token)
VALUES (:id, :name, :uid, :gid, :owner, :submitted_at, :priority, :state, :job, :labels, :token);

-- name: update_job
WITH new (id, state, job, ended_at) AS (VALUES (:id, :state, :job, :ended_at))
UPDATE jobs SET state = new.state, job = new.job, ended_at = new.ended_at FROM new WHERE jobs.id = new.id;

-- name: add_event
INSERT INTO events (job_id, at, kind, text, body) VALUES (:job_id, :at, :kind, :text, :body);

-- name: add_attempt
INSERT INTO attempts (job_id, number, lineage, image, placed_at)
VALUES (:job_id, :number, :lineage, :image, :at);

-- name: drop_attempt
-- The image was missing: the attempt never started, and its number is used again.
DELETE FROM attempts WHERE job_id = :job_id AND number = :number;

-- name: attempt_launched
WITH new (job_id, number, at) AS (VALUES (:job_id, :number, :at))
UPDATE attempts SET launched_at = new.at FROM new
WHERE attempts.job_id = new.job_id AND attempts.number = new.number;

-- name: attempt_ended
WITH new (job_id, number, at, exit_code, cause, message, verdict, checkpoint_step)
AS (VALUES (:job_id, :number, :at, :exit_code, :cause, :message, :verdict, :checkpoint_step))
UPDATE attempts
SET ended_at = new.at, exit_code = new.exit_code, cause = new.cause, message = new.message,
    verdict = new.verdict, checkpoint_step = new.checkpoint_step
FROM new
WHERE attempts.job_id = new.job_id AND attempts.number = new.number AND attempts.ended_at IS NULL;

-- name: unfinished
SELECT * FROM whole_jobs WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_unfinished WHERE state != 'finished')
ORDER BY id;

-- name: job_by_id
SELECT * FROM whole_jobs WHERE id = :id;

-- name: jobs_by_name
SELECT * FROM whole_jobs WHERE id IN (SELECT max(id) FROM jobs WHERE name = :name GROUP BY owner)
ORDER BY id DESC LIMIT :limit;

-- name: job_by_token
SELECT * FROM whole_jobs WHERE token = :token;

-- name: unfinished_ids
-- A page is one row of JSON: after each row, the thread that reads waits again for its turn of the interpreter.
SELECT json_group_array(id) AS page FROM (
    SELECT id FROM jobs INDEXED BY jobs_unfinished
    WHERE state != 'finished' AND (:uid IS NULL OR uid = :uid) AND (:before IS NULL OR id < :before)
    ORDER BY id DESC LIMIT :limit
);

-- name: ended_ids
SELECT json_group_array(id) AS page FROM (
    SELECT id FROM jobs WHERE state = 'finished' AND (:before IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit
);

-- name: ended_ids_since
SELECT json_group_array(id) AS page FROM (
    SELECT id FROM jobs INDEXED BY jobs_by_end WHERE ended_at >= :since AND (:before IS NULL OR id < :before)
    ORDER BY id DESC LIMIT :limit
);

-- name: ended_ids_of_owner
SELECT json_group_array(id) AS page FROM (
    SELECT id FROM jobs INDEXED BY jobs_by_owner
    WHERE uid = :uid AND ended_at >= coalesce(:since, '') AND (:before IS NULL OR id < :before)
    ORDER BY id DESC LIMIT :limit
);

-- name: jobs_among
SELECT json_group_array(json_object(
    'id', id, 'uid', uid, 'gid', gid, 'priority', priority, 'text_id', text_id, 'name', name, 'owner', owner,
    'submitted_at', submitted_at, 'ended_at', ended_at, 'job', job, 'labels', labels, 'edits', edits
)) AS page FROM whole_jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: attempts_of
SELECT * FROM attempts WHERE job_id = :job_id ORDER BY number;

-- name: events_after
SELECT events.*, jobs.name AS name FROM events JOIN jobs ON jobs.id = events.job_id
WHERE seq > :after AND (:job_id IS NULL OR job_id = :job_id) ORDER BY seq LIMIT :limit;

-- name: interruptions
-- The cause alone does not tell who ended an attempt; the decision about its exit does.
SELECT coalesce(sum(ran_s), 0.0) AS ran, coalesce(sum(taken), 0) AS taken FROM (
    SELECT max((julianday(ended_at) - julianday(launched_at)) * 86400.0, 0.0) AS ran_s,
        (SELECT count(*) > 0 FROM decisions
         WHERE decisions.job_id = attempts.job_id AND attempt = number AND moment = 'exit'
           AND json_extract(iif(json_valid(decisions.body), decisions.body, '{}'), '$.facts.killed_by') IN ('nobody', 'preemption')
           AND (cause IN ('killed', 'terminated', 'vanished', 'stopped')
                OR json_extract(iif(json_valid(decisions.body), decisions.body, '{}'), '$.facts."device.lost"'))) AS taken
    FROM attempts INDEXED BY attempts_by_end WHERE ended_at IS NOT NULL AND launched_at IS NOT NULL
    ORDER BY ended_at DESC LIMIT 1000
);

-- name: noted
SELECT text FROM events WHERE job_id = :job_id AND kind = :kind ORDER BY seq;

-- name: changed_after
SELECT DISTINCT job_id FROM events NOT INDEXED WHERE seq > :after ORDER BY job_id;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM events;

-- name: count_states
SELECT state, jobs FROM job_counts WHERE jobs > 0;

-- name: add_text
INSERT OR IGNORE INTO texts (digest, text) VALUES (:digest, :text);

-- name: text_id
SELECT id FROM texts WHERE digest = :digest;

-- name: text_by_id
SELECT text FROM texts WHERE id = :id;

-- name: add_revision
WITH new (job_id, number, at, by, why, digest, edits)
AS (VALUES (:job_id, :number, :at, :by, :why, :digest, :edits))
INSERT INTO revisions (job_id, number, at, by, why, text_id, edits)
SELECT new.job_id, new.number, new.at, new.by, new.why, texts.id, new.edits
FROM new JOIN texts ON texts.digest = new.digest;

-- name: leave_revision
UPDATE revisions SET lineage = :lineage WHERE job_id = :job_id AND number = :number;

-- name: take_up_revision
UPDATE jobs SET priority = :priority, labels = :labels WHERE id = :job_id;

-- name: revisions_of
SELECT * FROM revisions WHERE job_id = :job_id ORDER BY number;

-- name: revisions_with_states
SELECT revisions.job_id AS job_id, jobs.state AS state, revisions.text_id AS text_id, revisions.edits AS edits
FROM revisions JOIN jobs ON jobs.id = revisions.job_id;

-- name: revision_text
SELECT job_id, number, text_id, edits FROM revisions WHERE job_id = :job_id AND number = :number;

-- name: job_by_owner
SELECT * FROM whole_jobs WHERE name = :name AND owner = :owner ORDER BY id DESC LIMIT 1;

-- name: jobs_following
SELECT * FROM whole_jobs WHERE id >= :first AND id < :first + :count ORDER BY id;

-- name: labelled
SELECT * FROM whole_jobs WHERE id IN (
        SELECT id FROM jobs WHERE ended_at IS NULL UNION ALL SELECT id FROM jobs WHERE ended_at >= :since)
    AND (:uid IS NULL OR uid = :uid) AND (:before IS NULL OR id < :before)
    AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(labels), labels, '{}')) AS label
                WHERE label.key = :key AND (:value IS NULL OR label.value = :value))
ORDER BY id DESC LIMIT :limit;

-- name: add_schedule
INSERT INTO schedules (name, uid, gid, owner, path, text, terms, token, made_at, looked_at, state, note)
VALUES (:name, :uid, :gid, :owner, :path, :text, :terms, :token, :made_at, :looked_at, :state, :note);

-- name: schedule_by_id
SELECT * FROM schedules WHERE id = :id;

-- name: schedule_by_token
SELECT * FROM schedules WHERE token = :token;

-- name: schedules_named
-- The caller's own first, then those that are not over, then the newest.
SELECT * FROM schedules WHERE name = :name AND state != 'removed'
ORDER BY (uid = :uid AND owner = :owner) DESC, state IN ('active', 'paused') DESC, id DESC;

-- name: schedules_listed
SELECT * FROM schedules WHERE (:uid IS NULL OR uid = :uid) AND (:every OR state != 'removed') ORDER BY id;

-- name: schedules_active
SELECT * FROM schedules WHERE state = 'active' ORDER BY id;

-- name: move_schedule
UPDATE schedules SET state = :state, note = :note, looked_at = :looked_at WHERE id = :id;

-- name: look_at_schedule
UPDATE schedules SET looked_at = :looked_at WHERE id = :id;

-- name: add_occasion
-- A schedule fires at most once for one time.
INSERT OR IGNORE INTO occasions (schedule, at, state, text) VALUES (:schedule, :at, :state, :text);

-- name: settle_occasion
UPDATE occasions SET state = :state, job_id = :job_id, text = :text WHERE schedule = :schedule AND at = :at;

-- name: occasions_of
SELECT * FROM occasions WHERE schedule = :schedule ORDER BY at DESC LIMIT :limit;

-- name: occasions_due
SELECT * FROM occasions WHERE state = 'due' ORDER BY at;

-- name: scheduled_unfinished
SELECT job_id FROM occasions JOIN jobs ON jobs.id = occasions.job_id
WHERE schedule = :schedule AND jobs.state != 'finished' ORDER BY job_id;

-- name: notices_after
SELECT events.*, jobs.name AS name, jobs.owner AS owner, jobs.labels AS labels
FROM events JOIN jobs ON jobs.id = events.job_id WHERE seq > :after ORDER BY seq LIMIT :limit;

-- name: add_lending
-- The number of an attempt whose image was missing is used again.
WITH new (job_id, attempt, owner, team, gpus, cpus, devices, placed_at)
AS (VALUES (:job_id, :attempt, :owner, :team, :gpus, :cpus, :devices, :placed_at))
INSERT OR REPLACE INTO lendings (job_id, attempt, uid, owner, team, gpus, cpus, devices, placed_at)
SELECT job_id, attempt, uid, new.owner, team, gpus, cpus, devices, placed_at
FROM new JOIN jobs ON jobs.id = new.job_id;

-- name: end_lending
WITH new (job_id, number, at) AS (VALUES (:job_id, :number, :at))
UPDATE lendings SET ended_at = new.at FROM new
WHERE lendings.job_id = new.job_id AND lendings.attempt = new.number AND lendings.ended_at IS NULL;

-- name: lendings_since
SELECT * FROM lendings WHERE ended_at IS NULL OR ended_at > :begins
ORDER BY placed_at, job_id, attempt;

-- name: lendings_unsummed
SELECT * FROM lendings WHERE summed = 0 ORDER BY placed_at, job_id, attempt;

-- name: lasted_by_name
-- Only a few rows are read, however many jobs have the name.
SELECT lasted FROM (
    SELECT owner, json_extract(iif(json_valid(job), job, '{}'), '$.state.outcome') AS outcome,
        (SELECT sum((julianday(ended_at) - julianday(placed_at)) * 86400.0) FROM lendings
         WHERE lendings.job_id = jobs.id) AS lasted
    FROM jobs WHERE name = :which AND state = 'finished' ORDER BY id DESC LIMIT 20
) WHERE owner = :owner AND outcome = 'succeeded' AND lasted IS NOT NULL LIMIT 5;

-- name: lasted_by_matrix
-- The jobs of an array have consecutive ids, and names that differ in the number at the end.
SELECT lasted FROM (
    SELECT owner, json_extract(iif(json_valid(job), job, '{}'), '$.state.outcome') AS outcome,
        (SELECT sum((julianday(ended_at) - julianday(placed_at)) * 86400.0) FROM lendings
         WHERE lendings.job_id = jobs.id) AS lasted
    FROM jobs WHERE id >= CAST(:which AS INTEGER) AND id < CAST(:which AS INTEGER) + 1000 AND state = 'finished'
        AND rtrim(name, '0123456789')
            = (SELECT rtrim(first.name, '0123456789') FROM jobs AS first WHERE first.id = CAST(:which AS INTEGER))
    ORDER BY id DESC LIMIT 20
) WHERE owner = :owner AND outcome = 'succeeded' AND lasted IS NOT NULL LIMIT 5;

-- name: lasted_by_schedule
-- The latest firings of a schedule whose jobs have ended.
SELECT lasted FROM (
    SELECT owner, json_extract(iif(json_valid(job), job, '{}'), '$.state.outcome') AS outcome,
        (SELECT sum((julianday(ended_at) - julianday(placed_at)) * 86400.0) FROM lendings
         WHERE lendings.job_id = jobs.id) AS lasted
    FROM jobs WHERE state = 'finished' AND id IN (
        SELECT job_id FROM occasions
        WHERE schedule = CAST(:which AS INTEGER) AND job_id IS NOT NULL ORDER BY at DESC LIMIT 20)
    ORDER BY id DESC LIMIT 20
) WHERE owner = :owner AND outcome = 'succeeded' AND lasted IS NOT NULL LIMIT 5;

-- name: held_by_job
-- What the latest jobs that have ended held, in device-seconds.
SELECT sum((julianday(ended_at) - julianday(placed_at)) * 86400.0 * (gpus + :cpu_weight * cpus)) AS held
FROM lendings
WHERE ended_at IS NOT NULL AND job_id IN (
    SELECT id FROM jobs WHERE ended_at IS NOT NULL ORDER BY ended_at DESC, id DESC LIMIT :jobs)
GROUP BY job_id;

-- name: switches_since
-- Devices of attempts that were preempted, and when these were told.
SELECT lendings.job_id, lendings.attempt, lendings.gpus, lendings.cpus, lendings.ended_at, max(events.at) AS told_at
FROM events INDEXED BY switch_requests CROSS JOIN lendings ON lendings.job_id = events.job_id
    AND events.at >= lendings.placed_at AND events.at <= lendings.ended_at
WHERE events.kind = 'preempt_requested' AND events.at > :since
    AND (SELECT json_extract(iif(json_valid(decisions.body), decisions.body, '{}'), '$.facts.killed_by')
         FROM decisions
         WHERE decisions.job_id = lendings.job_id AND decisions.attempt = lendings.attempt AND moment = 'exit'
         ORDER BY seq DESC LIMIT 1) = 'preemption'
GROUP BY lendings.job_id, lendings.attempt
ORDER BY lendings.ended_at;

-- name: used_between
SELECT * FROM used_attempts WHERE placed_at < :until AND (ended_at IS NULL OR ended_at > :since);

-- name: used_attempt
SELECT * FROM used_attempts WHERE job_id = :job_id AND attempt = :attempt;

-- name: used_unsummed
SELECT * FROM used_attempts WHERE summed = 0;

-- name: used_and_over
SELECT * FROM used_attempts WHERE summed = 0 AND ended_at < :before ORDER BY ended_at LIMIT :limit;

-- name: used_by_job
SELECT * FROM used_attempts WHERE job_id = :job_id;

-- name: largest_jobs
-- The jobs that held the most, and how many jobs held anything.
SELECT job_id, count(*) OVER () AS jobs FROM (
    SELECT job_id, sum(gpus * held) AS device_days, sum(cpus * held) AS cpu_days FROM (
        SELECT job_id, gpus, cpus,
            julianday(min(coalesce(ended_at, :until), :until)) - julianday(max(placed_at, :since)) AS held
        FROM lendings WHERE ended_at > :since OR ended_at IS NULL)
    WHERE held > 0 GROUP BY job_id)
ORDER BY device_days DESC, cpu_days DESC, job_id LIMIT :most;

-- name: sum_lending
UPDATE lendings SET summed = 1 WHERE job_id = :job_id AND attempt = :attempt;

-- name: add_usage
INSERT INTO usage_hours (hour, owner, team, began, carried, device_s, cpu_s, useful_device_s, useful_cpu_s,
    measured_device_s, busy_device_s)
VALUES (:hour, :owner, :team, :began, :carried, :device_s, :cpu_s, :useful_device_s, :useful_cpu_s,
    :measured_device_s, :busy_device_s)
ON CONFLICT (hour, owner, team) DO UPDATE
SET began = began + excluded.began, carried = carried + excluded.carried,
    device_s = device_s + excluded.device_s, cpu_s = cpu_s + excluded.cpu_s,
    useful_device_s = useful_device_s + excluded.useful_device_s,
    useful_cpu_s = useful_cpu_s + excluded.useful_cpu_s,
    measured_device_s = measured_device_s + excluded.measured_device_s,
    busy_device_s = busy_device_s + excluded.busy_device_s;

-- name: used_since_hour
SELECT owner, team, sum(began) + sum(carried * (hour = :hour)) AS attempts, sum(device_s) AS device_s,
    sum(cpu_s) AS cpu_s, sum(useful_device_s) AS useful_device_s, sum(useful_cpu_s) AS useful_cpu_s,
    sum(measured_device_s) AS measured_device_s, sum(busy_device_s) AS busy_device_s
FROM usage_hours WHERE hour >= :hour GROUP BY owner, team;

-- name: usage_by_hour
SELECT hour, owner, team, device_s, cpu_s FROM usage_hours WHERE hour >= :hour;

-- name: gave_way_since
-- The attempts that were told to be preempted since a time, and that have ended.
SELECT DISTINCT used_attempts.* FROM events INDEXED BY switch_requests
CROSS JOIN used_attempts ON used_attempts.job_id = events.job_id
    AND events.at >= used_attempts.placed_at AND events.at <= used_attempts.ended_at
WHERE events.kind = 'preempt_requested' AND events.at >= :since;

-- name: switch_of
-- For which job an attempt was preempted that was allocated for a while, and what the queue said of it.
SELECT events.at AS told_at, json_extract(iif(json_valid(events.body), events.body, '{}'), '$.spared_s') AS spared_s,
    other.id AS other_id, other.name AS other_name, other.owner AS other_owner,
    (SELECT team FROM lendings WHERE lendings.job_id = other.id LIMIT 1) AS other_team,
    EXISTS (SELECT 1 FROM lendings WHERE lendings.job_id = other.id AND lendings.placed_at >= events.at) AS other_ran
FROM events JOIN jobs AS other ON other.id = CAST(json_extract(iif(json_valid(events.body), events.body, '{}'), '$.for_job') AS INTEGER)
WHERE events.job_id = :job_id AND events.kind = 'preempt_requested'
    AND events.at >= :placed_at AND events.at <= :ended_at
ORDER BY events.seq DESC LIMIT 1;

-- name: add_utilisation
INSERT INTO utilisation (job_id, attempt, device_s, busy_s) VALUES (:job_id, :attempt, :device_s, :busy_s)
ON CONFLICT (job_id, attempt) DO UPDATE
SET device_s = device_s + excluded.device_s, busy_s = busy_s + excluded.busy_s;

-- name: set_start
INSERT OR REPLACE INTO starts (job_id, attempt, start_s) VALUES (:job_id, :attempt, :start_s);

-- name: starts_of_unfinished
SELECT job_id, max(attempt) AS attempt, start_s FROM starts
WHERE job_id IN (SELECT id FROM jobs WHERE ended_at IS NULL) GROUP BY job_id;

-- name: attempts_ended_after
SELECT seq, kind, json_extract(iif(json_valid(body), body, '{}'), '$.ended.cause') AS cause FROM events
WHERE seq > :after ORDER BY seq LIMIT :limit;

-- name: rulings_after
SELECT seq, moment, json_extract(iif(json_valid(body), body, '{}'), '$.verdict.rule') AS rule, json_extract(iif(json_valid(body), body, '{}'), '$.policy.name') AS policy
FROM decisions WHERE seq > :after ORDER BY seq LIMIT :limit;

-- name: last_ruling
SELECT coalesce(max(seq), 0) FROM decisions;

-- name: utilisation_of
SELECT device_s, busy_s FROM utilisation WHERE job_id = :job_id AND attempt = :attempt;

-- name: device_marks
SELECT * FROM devices ORDER BY uuid;

-- name: mark_device
INSERT OR REPLACE INTO devices (uuid, state, reason, by, since) VALUES (:uuid, :state, :reason, :by, :since);

-- name: unmark_device
DELETE FROM devices WHERE uuid = :uuid;

-- name: device_runs
-- The newest attempts that ran on devices, the oldest of them first.
SELECT * FROM (SELECT lendings.job_id, lendings.owner, lendings.devices, lendings.placed_at, lendings.ended_at,
        attempts.launched_at, attempts.cause
    FROM lendings JOIN attempts ON attempts.job_id = lendings.job_id AND attempts.number = lendings.attempt
    WHERE lendings.ended_at > :since AND lendings.devices != '[]' AND attempts.launched_at IS NOT NULL
    ORDER BY lendings.ended_at DESC LIMIT :most)
ORDER BY ended_at;

-- name: devices_resumed
SELECT key, value FROM meta WHERE key >= 'resumed:' AND key < 'resumed;';

-- name: devices_remembered
SELECT key, value FROM meta WHERE key >= 'device:' AND key < 'device;';
