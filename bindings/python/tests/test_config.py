import datetime

import pytest

import dsgd
from raising import raises


def test_every_key_of_the_table_can_be_read_and_its_default_set():
    keys = dsgd.config_keys()
    assert [key.name for key in keys] == sorted(key.name for key in keys)
    config = dsgd.Config()
    assert list(config) == [key.name for key in keys] and len(config) == len(keys)
    for key in keys:
        assert config[key.name] == key.default
        assert key.environment == "DSGD_" + key.name.upper() and key.help
        assert key.name in config
        if key.default:
            config[key.name] = key.default


def test_values_come_from_keywords_items_environment_and_file_in_that_order(tmp_path, monkeypatch):
    monkeypatch.setenv("DSGD_JOB", "from-environment")
    monkeypatch.setenv("DSGD_TOKEN", "from-environment")
    file = tmp_path / "job.conf"
    file.write_text("# a job\njob = from-file\ntoken = from-file\nlease = 3s\n")
    config = dsgd.Config(job="from-keyword", num_workers=4, reproducible=True)
    config.load(file)
    assert config["job"] == "from-keyword"
    assert config["token"] == "from-environment"
    assert config["lease"] == "3s"
    assert (config["num_workers"], config["reproducible"]) == ("4", "1")
    assert config.get("job") == "from-keyword" and config.get("jobb", "none") == "none"
    config["lease"] = datetime.timedelta(seconds=2.5)
    assert config["lease"] == "2500ms"
    config["devices"] = ["cpu", "cpu"]
    assert config["devices"] == "cpu,cpu"


def test_the_token_is_not_shown():
    assert "secret" not in repr(dsgd.Config(token="secret", job="shown"))
    assert "shown" in repr(dsgd.Config(token="secret", job="shown"))


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(dsgd.InvalidArgumentError, match="heartbeat_interval") as caught:
        dsgd.Config(heartbeat_intervall="500ms")
    assert caught.value.parameter == "heartbeat_intervall"
    with pytest.raises(KeyError):
        dsgd.Config()["heartbeat_intervall"]
    assert "heartbeat_intervall" not in dsgd.Config() and 3 not in dsgd.Config()


@pytest.mark.parametrize("value", ["soon", "", "-1s", "\u00e9"])
def test_a_bad_value_is_refused_and_named(value):
    with pytest.raises(ValueError, match="lease"):
        dsgd.Config(lease=value)


def test_wrong_types():
    config = dsgd.Config()
    with pytest.raises(dsgd.InvalidArgumentError):
        config["job"] = None
    with pytest.raises(ValueError, match="NUL"):
        config["job"] = "a\0b"
    with pytest.raises(TypeError):
        config[3] = "a"
    with pytest.raises(TypeError, match="dsgd.Config"):
        dsgd.init("127.0.0.1:7700")
    with pytest.raises(dsgd.InvalidArgumentError, match="num_workers"):
        dsgd.init(dsgd.Config(), num_workers=2)


def test_files_that_are_missing_or_wrong(tmp_path):
    config = dsgd.Config()
    with raises(dsgd.Status.NOT_FOUND, match="absent.conf"):
        config.load(tmp_path / "absent.conf")
    file = tmp_path / "job.conf"
    file.write_text("job = fine\nlease = soon\n")
    with pytest.raises(dsgd.InvalidArgumentError, match="2"):
        config.load(file)
    assert config["job"] == "default"


def test_bad_environment_is_reported_by_init(monkeypatch):
    monkeypatch.setenv("DSGD_LEASE", "soon")
    with pytest.raises(dsgd.InvalidArgumentError, match="DSGD_LEASE"):
        dsgd.init()
