"""An administrator's team.toml is read, and each mistake is told in a sentence."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from caesura import wire
from caesura.cluster import config, head
from caesura.cluster.config import BadConfig


def written(folder: Path, text: str, policy: str | None = None) -> Path:
    path = folder / "team.toml"
    path.write_text(text)
    if policy is not None:
        (folder / "policy.toml").write_text(policy)
    return path


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "team"


def test_the_examples_are_what_the_program_takes() -> None:
    """Also for a Ray Serve that runs already, which gets the same engine."""
    team = config.read(EXAMPLES / "team.toml")
    assert config.policy(EXAMPLES / "team.toml", team).never
    deployed = yaml.safe_load((EXAMPLES / "serve.yaml").read_text())
    (application,) = deployed["applications"]
    (deployment,) = application["deployments"]
    replicas = deployment["num_replicas"]
    replica = msgspec.convert(application["args"], config.ReplicaSettings)
    assert config.Fleet(**msgspec.structs.asdict(replica), replicas=replicas, most=replicas) == team.engine
    module, _, function = application["import_path"].partition(":")
    for name in (f"{module}.{function}", *deployed["grpc_options"]["grpc_servicer_functions"]):
        package, _, wanted = name.rpartition(".")
        source = ROOT / "cluster" / f"{package.rpartition('.')[2]}.py"
        assert f"\ndef {wanted}(" in source.read_text()


def test_the_containers_have_what_their_files_name() -> None:
    """Every folder of the package is copied, and all that is copied or mounted is there."""
    copies = [
        line.split()[1:-1]
        for line in (EXAMPLES / "Containerfile").read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
    ]
    copied = {name for names in copies for name in names}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    assert set(packages.values()) <= copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    services = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]
    assert (EXAMPLES / services["door"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["door"]["build"]["dockerfile"]).samefile(EXAMPLES / "Containerfile")
    assert Path(services["engine"]["command"][1]).name in {Path(name).name for name in copied}


@pytest.mark.skipif(sys.platform != "linux", reason="Ray is started on Linux alone")
def test_an_administrators_ray_has_the_settings_of_the_doors_own() -> None:
    sourced = ["/bin/sh", "-c", ". ./ray.env && umask && env -0"]
    said = subprocess.run(sourced, cwd=EXAMPLES, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    mask, _, settings = said.stdout.decode().partition("\n")
    assert int(mask, 8) == 0o077
    found = dict(line.partition("=")[::2] for line in settings.split("\0"))
    assert {name: value for name, value in found.items() if name.startswith("RAY_")} == head.SETTINGS


def test_an_address_is_all_that_a_team_needs(tmp_path: Path) -> None:
    path = written(tmp_path, 'listen = "192.0.2.7:7411"\n')
    team = config.read(path)
    assert (team.listen, team.engine.replicas, team.limits.jobs) == ("192.0.2.7:7411", 1, 8)
    assert config.policy(path, team) == wire.Policy()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Object missing required field `listen`"),
        ("listen = ", "Invalid value"),
        ('listen = "0.0.0.0:7411"', "would listen on every network"),
        ('listen = "192.0.2.7:7411"\n[watch]\nlisten = "0.0.0.0:9464"', "would listen on every network"),
        ('listen = "192.0.2.7:7411"\n[watch]\ntraces = "http://host:4317"', "is not ADDRESS:PORT"),
        ('listen = "192.0.2.7:7411"\n[engine]\naddress = "engine"', "is not ADDRESS:PORT"),
        ('listen = "192.0.2.7:7411"\nlimit = 1', "unknown field `limit`"),
        ('listen = "192.0.2.7:7411"\n[limits]\njobs = 0', "at `$.limits.jobs`"),
        ('listen = "192.0.2.7:7411"\n[engine]\nmodels = ["small", "gro\u00df"]', "names the model 'gro\u00df'"),
        ('listen = "192.0.2.7:7411"\n[engine]\nmodels_per_replica = 0', "at `$.engine.models_per_replica`"),
        ('listen = "192.0.2.7:7411"\n[engine]\nreplicas = 3\nmost = 2', "fewer than the 3 replicas"),
        ('listen = "192.0.2.7:7411"\n[engine]\ndevice = "cuda"', "`gpus` is 0; say how many"),
        ('listen = "192.0.2.7:7411"\n[engine]\ndevice = "cuda:0"', "`gpus` is 0; say how many"),
    ],
)
def test_a_mistake_is_told_with_the_file_and_the_place(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadConfig) as error:
        config.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert why in str(error.value)


def test_replicas_that_need_more_cpus_than_there_are_are_started_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = config.Fleet(cpus=1.5, replicas=2, most=3)
    assert head.promised(fleet, cpus=8) == 8
    assert not caplog.messages
    assert head.promised(fleet, cpus=4) == 7
    assert caplog.messages == ["the replicas may need 5 CPUs and this machine has 4: they will wait for each other"]


def test_a_ray_of_ones_own_is_refused_replicas_whose_gpu_it_would_hide() -> None:
    with pytest.raises(msgspec.ValidationError, match="`gpus` is 0"):
        msgspec.convert({"device": "cuda"}, config.ReplicaSettings)


def test_a_model_that_is_named_twice_is_offered_once_and_the_default_comes_first(tmp_path: Path) -> None:
    path = written(tmp_path, 'listen = "192.0.2.7:7411"\n[engine]\nmodel = "coder"\nmodels = ["small", "coder"]\n')
    assert config.read(path).engine.offered == ("coder", "small")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        config.read(tmp_path / "team.toml")


TEAM = 'listen = "192.0.2.7:7411"\npolicy = "policy.toml"\n'


def test_a_policy_lies_next_to_the_configuration(tmp_path: Path) -> None:
    path = written(tmp_path, TEAM, 'never = ["secrets/", "*.pem"]\noff = ["speculate"]\n')
    found = config.policy(path, config.read(path))
    assert found == wire.Policy(("secrets/", "*.pem"), ("speculate",))
    assert str(found) == "never sent: secrets/, *.pem; off: speculate"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('never = ["!kept"]', "reveals files"),
        ('never = ["# kept"]', "matches nothing"),
        ('never = ["a[b-a]"]', "is no gitignore pattern"),
        ('off = ["everything"]', "`off` cannot name 'everything'"),
        ('always = ["a"]', "unknown field `always`"),
        ('never = ["\xff"', "policy.toml: "),
    ],
)
def test_a_rule_that_clients_could_not_obey_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, TEAM, text)
    with pytest.raises(BadConfig, match=r"policy\.toml: ") as error:
        config.policy(path, config.read(path))
    assert why in str(error.value)
