"""ReBaFL's feature transfer: its options."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import toys
from methods import hand

from fedjax_bal.methods import rebafl as MODULE
from fedjax_bal.parts import FeatureTransfer
from fedjax_bal.types import Outcome

CLIENT = 4
KEY = jax.random.key(0)


def context(**given):
    federation = jax.tree.map(jnp.asarray, toys.federation())
    counts, size = federation.class_counts[CLIENT], jnp.int32(toys.SIZES[CLIENT])
    client = {"client": jnp.int32(CLIENT), "size": size, "class_counts": counts, "federation": federation}
    return hand.context(**client, start=hand.variables(5), batch_size=5, **given)


def received(present=(True, True, False, True)):
    return MODULE.Prototypes(jnp.full((toys.CLASSES, toys.FEATURES), 7.0), jnp.array(present))


def test_only_the_servers_prototypes_count_when_asked():
    ctx = context(broadcast={"FeatureTransfer": received()})
    means = lambda part: np.asarray(jax.jit(lambda: part.prepare(KEY, ctx.start, ctx).means)())
    assert (means(FeatureTransfer(prototypes="global_only")) == 7.0).all()
    assert not (means(FeatureTransfer()) == 7.0).all()


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
        sums = jax.jit(lambda limit: FeatureTransfer(min_classes=limit).report(outcome))(limit)
        assert np.asarray(sums.counts).any() == np.asarray(sums.sums).any() == sends
