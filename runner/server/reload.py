"""Reloading the settings: by SIGHUP, as ``systemctl reload`` sends it, and by ``runner settings reload``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import structlog

from runner.base.errors import RunnerError
from runner.files.settings.live import LiveSettings, SettingsChange, merge_settings
from runner.files.settings.model import Settings, load_settings
from runner.services.jobs import JobService

log = structlog.get_logger()


@dataclass(slots=True)
class SettingsReload:
    """Reads the settings file again; a file with a mistake changes nothing."""

    service: JobService
    path: Path | None
    after: Callable[[], object] = lambda: None
    """Called when the settings are in force: the helper of a daemon in two parts reads the file itself."""
    _lock: Lock = field(default_factory=Lock)

    def reload(self) -> SettingsChange:
        """Read the file, put in force what may change, and return what that was.

        Raises:
            UsageError: the file is wrong; the present settings stay in force.
        """
        with self._lock:
            live, site = self.service.live, self.service.daemon.context.site
            change = merge_settings(live.value, load_settings(self.path))
            for problem in change.settings.strangers():
                log.warning("settings.unknown_name", problem=problem)
            queue = change.settings.queue
            rules, windows = queue.rules(), queue.windows()

            def put_in_force() -> None:
                live.value = change.settings
                site.rules, site.maintenance, site.utc_offset_s = rules, windows, queue.utc_offset_s
                site.learns_levels = queue.switching.levels is None

            self.service.daemon.run_exclusively(put_in_force)
            self.after()
        log.info("settings.reloaded", changed=change.changed, needs_restart=change.needs_restart)
        self.service.daemon.wake()
        return change

    def reload_and_log(self) -> None:
        """Do the same for nobody who waits; a mistake in the file is logged."""
        try:
            self.reload()
        except RunnerError as error:
            log.warning("settings.not_reloaded", problem=str(error))


def reload_helper(live: LiveSettings, path: Path | None) -> Settings:
    """Read the settings file again for the helper of a daemon, and return the settings in force.

    Raises:
        UsageError: the file is wrong; the present settings stay in force.
    """
    live.value = merge_settings(live.value, load_settings(path)).settings
    return live.value
