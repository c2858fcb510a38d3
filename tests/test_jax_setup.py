"""How jax starts: all cores, right sums, a platform that is there; and other settings of jax change no result."""

import contextlib
import os
import signal
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest
import quick
import toys
from jax.sharding import AxisType
from rounding import FORMULA

from fedjax_bal import LocalTraining, jax_setup, make_round, optimizer, recipes, simulate, xla_flags
from fedjax_bal.engine.host import device_count


@pytest.fixture
def late(monkeypatch):
    """As if jax had started, with fewer devices than cores, before the package was used."""
    monkeypatch.setattr(jax_setup, "_is_set", lambda: False)
    monkeypatch.setattr(jax_setup, "cores", lambda: 64)
    jax_setup.warn_of_idle_cores.cache_clear()
    yield
    jax_setup.warn_of_idle_cores.cache_clear()


def test_one_message_says_how_to_use_all_cores(late):
    with pytest.warns(UserWarning, match=r'on 2 of 64 cores, .* jax.config.update\("jax_num_cpu_devices", 64\)'):
        assert device_count("auto") == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_count("auto") == 2


def test_no_message_where_the_user_has_set_the_number(monkeypatch):
    monkeypatch.setattr(jax_setup, "cores", lambda: 64)
    jax_setup.warn_of_idle_cores.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_count("auto") == jax.device_count() == 2


LOCAL = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.1))
SUMS = """
import jax, jax.numpy as jnp, numpy as np
from fedjax_bal.types import Model, Outputs, Variables
from fedjax_bal import LocalTraining, balance, data, make_round, optimizer, recipes
# The norm of a product, row by row, of more rows than the library adds at a time.
rows = np.zeros((32769, 3), np.float32); rows[:, 0] = np.arange(32769) / 64
def energy(x): return jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2))(x)
right = (rows.astype(np.float64)**2).sum(1)
same = lambda found, wanted: np.allclose(np.asarray(found)[-9:], wanted[-9:], rtol=1e-6, atol=0)
weights = Variables({"w": jnp.eye(3)}, {})
def apply(variables, x, *, train, key=None, real=None):
    logits = jnp.stack([energy(x), 0 * x[:, 0]], 1)
    return Outputs(logits, x), variables
model = Model(lambda key: weights, apply, lambda params, x: x, "sums", 2, (3,))
print(same(jax.jit(energy)(rows), right))
print(same(jax.jit(lambda x: model.apply(weights, x, train=False)[0].logits[:, 0])(rows), right))
# Prototypes of classes, of features that are such sums.
def norms(x): return balance.class_prototypes(energy(x)[:, None], jnp.arange(len(x)) % 2, jnp.ones(len(x), bool), 2)[0]
halves = np.stack([right[half::2].mean() for half in (0, 1)])
print(np.allclose(np.asarray(jax.jit(norms)(rows))[:, 0], halves, rtol=1e-5))
# A full-batch step whose gradient is such a sum: of log(1 + exp(w.energy)) with w = 0, half the mean energy.
def learn(variables, x, *, train, key=None, real=None):
    return Outputs(jnp.stack([variables.params["w"] * energy(x), 0 * x[:, 0]], 1), x), variables
learner = Model(lambda key: Variables({"w": jnp.zeros(())}, {}), learn, lambda params, x: x, "learner", 2, (3,))
federation = data.federate(rows, np.ones(len(rows), int), [np.arange(len(rows))], 2)
local = LocalTraining(batch_size=len(rows), optimizer=optimizer("sgd", 1.0))
pair = make_round(recipes.fedavg(), learner, federation, local=local)
key = jax.random.key(0)
plan = np.zeros((1, 1), int), np.ones((1, 1), bool)
after, _ = jax.jit(pair.step)(pair.hyperparameters, key, pair.init(key), plan)
print(np.allclose(float(after.variables.params["w"]), -right.mean() / 2, rtol=1e-5))
"""
FIRST = {
    "models.from_nnx": "models.from_nnx(Net, (4,), 2)",
    "models.from_linen": "models.from_linen(linen.Sequential([linen.Dense(2)]), (4,), 2)",
    "optimizer": "fedjax_bal.optimizer('sgd', lambda round: 0.5**round)",
    "make_round": "fedjax_bal.make_round(recipes.fedavg(), models.build('mlp', 2, (2, 2, 1)), federation)",
}
"""What may be called first -> a call."""


def python(code, *options, **environment):
    """Runs code as a user's script, with no settings of these tests."""
    unset = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=unset | environment, timeout=300)


@pytest.mark.parametrize(("asked", "devices"), [("auto", jax_setup.cores()), (3, 3), (999, max(64, jax_setup.cores()))])
def test_the_number_of_devices_is_that_of_the_cores_or_what_is_asked_for(monkeypatch, asked, devices):
    monkeypatch.setattr(jax_setup, "_is_set", lambda: False)
    updates = []
    monkeypatch.setattr(type(jax.config), "update", lambda self, *change: updates.append(change))
    jax_setup.split_cpu(asked)
    assert updates == [("jax_num_cpu_devices", devices)]


@pytest.mark.slow
def test_a_number_that_the_user_has_set_before_jax_starts_is_kept():
    imports = "from fedjax_bal.engine.host import device_count; import jax"
    done = python(f"{imports}; jax.config.update('jax_num_cpu_devices', 5); print(device_count('auto'))")
    assert done.stdout == "5\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.only(FIRST, "models.from_linen", "make_round", others=pytest.mark.nightly))
def test_whatever_is_called_first_starts_jax_with_all_cores(name):
    begin = """
import jax, numpy as np, fedjax_bal
from flax import linen, nnx
from fedjax_bal import data, models, recipes
federation = data.federate(np.zeros((4, 2, 2, 1), np.uint8), [0, 1, 0, 1], [np.arange(4)], 2)
class Net(nnx.Module):
    def __init__(self, rngs): self.layer = nnx.Linear(4, 2, rngs=rngs)
    def __call__(self, x): return self.layer(x)
"""
    done = python(f"{begin}{FIRST[name]}\nprint(jax.device_count())", "-W", "error")
    assert done.stdout == f"{jax_setup.cores()}\n", done.stderr


@pytest.mark.slow
def test_no_function_of_the_package_adds_wrongly_under_a_plain_jit():
    assert python(SUMS, "-W", "error").stdout == "True\n" * 4


@pytest.mark.slow
@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="other versions add rightly")
def test_where_jax_has_started_already_one_warning_says_that_sums_may_be_wrong():
    late = python("import jax; jax.devices(); import fedjax_bal; from fedjax_bal import recipes", JAX_PLATFORMS="cpu")
    assert late.returncode == 0 and late.stderr.count("39103") == 1
    in_time = python("import jax, fedjax_bal; jax.devices()", "-W", "error", JAX_PLATFORMS="cpu")
    assert (in_time.returncode, in_time.stderr) == (0, "")


STALLED = """
import fedjax_bal, jax, numpy as np, time
from jax.sharding import PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 2)
def meet(x):
    late = lambda index: np.float32(time.sleep(4 * int(index)) or 1)
    return jax.lax.psum(jax.pure_callback(late, jax.ShapeDtypeStruct((), np.float32), jax.lax.axis_index("d")), "d")
print(jax.jit(jax.shard_map(meet, mesh=jax.make_mesh((2,), ("d",)), in_specs=P(), out_specs=P()))(0.0))
"""


@pytest.mark.nightly
def test_a_device_waits_a_day_for_the_others_unless_the_user_says_otherwise():
    done = python(f"{STALLED}import os; print(os.environ['XLA_FLAGS'])", JAX_PLATFORMS="cpu")
    assert done.stdout.startswith("2.0\n") and "terminate_timeout_seconds=86400" in done.stdout, done.stderr
    impatient = " ".join(f"--{name}=1" for name in xla_flags.PATIENCE)
    assert python(STALLED, JAX_PLATFORMS="cpu", XLA_FLAGS=impatient).returncode == -signal.SIGABRT


@pytest.mark.slow
@pytest.mark.parametrize("platform", quick.only(["cuda", "cudda"], "cuda", others=pytest.mark.nightly))
def test_a_platform_that_is_not_there_is_named(platform, tmp_path):
    code = """
import numpy as np
from fedjax_bal import data, models, recipes, simulate
images, labels = np.zeros((4, 2, 2, 1), np.uint8), [0, 1, 0, 1]
federation = data.federate(images, labels, [np.arange(4)], 2)
simulate(recipes.fedavg(), models.build("mlp", 2, (2, 2, 1)), federation, (images, labels), rounds=1, seed=0)
"""
    last = python(code, JAX_PLATFORMS=platform).stderr.strip().splitlines()[-1]
    assert last.startswith(f"ValueError: JAX_PLATFORMS: received '{platform}'")
    command = [sys.executable, "-m", "fedjax_bal", "run", "rounds=1", "seeds=1", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": platform})
    assert done.returncode == 2 and f"JAX_PLATFORMS: received '{platform}'" in done.stderr
    assert "Traceback" not in done.stderr


@contextlib.contextmanager
def settings(kind):
    """Settings of jax that a user may have for code of their own, all at once, with a mesh or without one."""
    strict = [jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.transfer_guard("disallow")]
    with contextlib.ExitStack() as stack:
        for setting in [jax.enable_x64(True), *strict, *([jax.set_mesh(mesh(kind))] if kind else [])]:
            stack.enter_context(setting)
        yield


def mesh(kind):
    return jax.make_mesh((2,), ("clients",), axis_types=(kind,), devices=jax.devices()[:2])


def trained():
    """A model, and the same by rounds of the caller's own."""
    numbers = {"rounds": 2, "seed": 3, "local": LOCAL}
    model = simulate(recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), **numbers).variables
    return jax.tree.map(np.asarray, model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
def test_a_users_settings_of_jax_change_no_result(kind):
    wanted = trained()
    with settings(kind):
        found = trained()
    assert all(own.dtype == np.float32 for own in jax.tree.leaves(found))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.slow
def test_a_step_within_a_users_jit_takes_their_settings():
    pair = make_round(recipes.fedprox(0.1), toys.network(), toys.federation(), local=LOCAL)

    def step(pair, numbers, plan):
        key = jax.random.key(0)
        return pair.step(numbers, key, pair.init(key), plan)[0].variables

    plan = np.arange(3)[:, None], np.ones((3, 1), bool)
    numbers = {key: np.float64(value) for key, value in pair.hyperparameters.items()}
    wanted = jax.jit(step)(pair, pair.hyperparameters, plan)
    with settings(None), jax.transfer_guard("allow"):
        found = jax.jit(step)(pair, numbers, plan)
    assert all(own.dtype == np.float32 for own in jax.tree.leaves(found))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.nightly
def test_without_jit_a_run_names_the_setting_and_a_step_runs():
    pair = make_round(recipes.fedavg(), toys.network(), toys.federation(), local=LOCAL)
    key, plan = jax.random.key(0), (np.arange(2)[:, None], np.ones((2, 1), bool))
    wanted = pair.step(pair.hyperparameters, key, pair.init(key), plan)[0]
    with jax.disable_jit():
        with pytest.raises(ValueError, match=r"jax_disable_jit .*: received True"):
            trained()
        found = pair.step(pair.hyperparameters, key, pair.init(key), plan)[0]
    jax.tree.map(lambda own, other: np.testing.assert_allclose(own, other, atol=FORMULA), found, wanted)


def fedavg(function, **options):
    return function(recipes.fedavg(), toys.network(), toys.federation(), **options)


@pytest.mark.parametrize("function", [simulate, make_round])
def test_a_call_within_a_users_jit_is_refused(function):
    options = {"test": toys.test_set(), "rounds": 1, "seed": 0} if function is simulate else {}
    with pytest.raises(ValueError, match="called inside jax.jit"):
        jax.jit(lambda: fedavg(function, **options).variables)()
