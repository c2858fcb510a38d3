"""ReBaFL's feature transfer: the options, and where it stays off."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import toys

from fedjax_bal.methods import rebafl as MODULE
from fedjax_bal.parts import FeatureTransfer
from fedjax_bal.types import Context, Outcome

CLIENT = 4
KEY = jax.random.key(0)


def context(part=None, received=None, batch_size=5, variables=None):
    federation = jax.tree.map(jnp.asarray, toys.federation())
    variables = variables or toys.network().init(KEY)
    return Context(
        round=jnp.int32(1), client=jnp.int32(CLIENT), class_counts=federation.class_counts[CLIENT],
        size=jnp.int32(toys.SIZES[CLIENT]), start=variables, broadcast={"FeatureTransfer": received}, memory={},
        prepared={}, model=toys.network(), federation=federation, learning_rate=jnp.float32(0.1), momentum=0.0,
        batch_size=batch_size,
    )  # fmt: skip


def local_means(variables):
    shards = toys.federation()
    rows = shards.rows[shards.offsets[CLIENT] : shards.offsets[CLIENT + 1]]
    features = np.tanh(shards.images[rows].reshape(len(rows), -1).astype(float) @ np.asarray(variables.params["w1"]))
    return {c: features[shards.labels[rows] == c].mean(0) for c in np.unique(shards.labels[rows])}


def received(present=(True, True, False, True)):
    return MODULE.Prototypes(jnp.full((toys.CLASSES, toys.FEATURES), 7.0), jnp.array(present))


def test_feature_sums_do_not_depend_on_the_batch_size():
    variables = toys.network().init(KEY)
    results = [MODULE.feature_sums(variables, context(batch_size=size)) for size in (1, 5, 12, 64)]
    for other in results[1:]:
        np.testing.assert_allclose(other.sums, results[0].sums, rtol=1e-5, atol=1e-6)
        assert (other.counts == results[0].counts).all()
    for c, mean in local_means(variables).items():
        np.testing.assert_allclose(results[0].sums[c] / results[0].counts[c], mean, rtol=1e-5, atol=1e-6)


def test_local_prototypes_override_the_servers_only_where_there_is_data():
    ctx = context(received=received())
    prototypes = FeatureTransfer().prepare(KEY, ctx.start, ctx)
    own = local_means(ctx.start)
    for c in range(toys.CLASSES):
        np.testing.assert_allclose(prototypes.means[c], own.get(c, np.full(toys.FEATURES, 7.0)), rtol=1e-5)
        assert bool(prototypes.present[c]) == (c in own or c != 2)
    only = FeatureTransfer(prototypes="global_only").prepare(KEY, ctx.start, ctx)
    assert (only.means == 7.0).all()


def server(state, sums):
    return SimpleNamespace(state=state, aggregate=SimpleNamespace(reports={"FeatureTransfer": sums}))


def test_a_class_that_nobody_delivered_is_forgotten_unless_carried():
    counts = jnp.array([2.0, 0.0, 1.0, 0.0])
    sums = MODULE.FeatureSums(jnp.outer(counts, jnp.arange(1.0, 1.0 + toys.FEATURES)), counts)
    for carry, present in ((False, [True, False, True, False]), (True, [True, True, True, True])):
        new = FeatureTransfer(carry=carry).update(KEY, server(received(), sums))
        assert new.present.tolist() == present
        np.testing.assert_allclose(new.means[0], jnp.arange(1.0, 1.0 + toys.FEATURES))
        assert (new.means[1] == (7.0 if carry else 0.0)).all()


def test_clients_with_few_classes_send_nothing_when_asked():
    ctx = context()
    held = int((ctx.class_counts > 0).sum())
    outcome = Outcome(ctx.start, ctx.start, jnp.int32(3), jnp.float32(0.3), ctx)
    for limit, sends in ((held, True), (held + 1, False)):
        sums = FeatureTransfer(min_classes=limit).report(outcome)
        assert bool(sums.counts.any()) == sends
        assert bool(sums.sums.any()) == sends
