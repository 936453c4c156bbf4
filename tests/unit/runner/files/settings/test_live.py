"""Changes by a reload of the settings, and those that wait for a restart."""

from runner.files.settings.live import RELOADABLE, merge_settings
from runner.files.settings.model import Settings

PRESENT = Settings.model_validate({"cpus": 4.0, "network": {"closed": ["10.0.0.0/8"]}})


def test_nothing_new_changes_nothing() -> None:
    change = merge_settings(PRESENT, PRESENT)
    assert (change.settings, change.changed, change.needs_restart) == (PRESENT, (), ())


def test_what_may_change_is_in_force_and_the_rest_keeps_its_value() -> None:
    written = Settings.model_validate(
        {
            "cpus": 8.0,
            "allowed_images": {"lab": "lab:1"},
            "queue": {"user_quota": {"jobs": 3}},
            "network": {"default": "outbound", "closed": []},
            "metrics": {"listen": "127.0.0.1:9835", "per_user": True},
        }
    )
    change = merge_settings(PRESENT, written)
    assert sorted(change.changed) == ["allowed_images", "metrics.per_user", "network.default", "queue"]
    assert sorted(change.needs_restart) == ["cpus", "metrics.listen", "network.closed"]
    assert change.settings.cpus == 4.0
    assert change.settings.queue == written.queue
    assert change.settings.network.closed == ("10.0.0.0/8",)
    assert change.settings.network.default == "outbound"
    assert (change.settings.metrics.listen, change.settings.metrics.per_user) == (None, True)


def test_every_reloadable_key_exists() -> None:
    assert set(RELOADABLE) <= set(Settings.model_fields)
    for name, keys in RELOADABLE.items():
        assert keys is None or keys <= set(type(getattr(PRESENT, name)).model_fields)
