"""DCGANs that clients lend each other: training against NumPy, the pool, and the law of who is asked."""

import dataclasses
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contrib.dcgan import gans
from methods import faking, float64
from rounding import FORMULA, STEPS

from fedjax_bal import models, recipes
from fedjax_bal.contrib.dcgan import SharedDcgans, build_dcgan, cbfl_dcgan
from fedjax_bal.contrib.dcgan import lending as DCGAN
from fedjax_bal.data import augment, federate
from fedjax_bal.lab import setup
from fedjax_bal.options import Participation
from fedjax_bal.parts import Fakes
from fedjax_bal.recipes import Recipe, fedavg
from fedjax_bal.types import Batch, Variables

TINY = SharedDcgans(iterations=400, pool=20, batch_size=16, rate=0.002, width=4, latent=2)
OWNED = [np.arange(10), np.arange(10, 13), np.arange(0), np.arange(13, 30)]
SPARE = {"balanced": np.arange(30, 36)}
TONES = {0: 40, 1: 90, 3: 200}


def pixels(count=36, side=4):
    return np.random.default_rng(0).normal(0, 15, (count, side, side, 1))


@cache
def federation():
    """Four clients, the third of them without rows, and six rows of the server's; each client of another brightness."""
    labels, images = np.arange(36) % 3, pixels() + 30
    for client, tone in TONES.items():
        images[OWNED[client]] += tone - 30
    images = np.clip(images, 0, 255).astype(np.uint8)
    return federate(images, labels.astype(np.int32), OWNED, 3, SPARE, mean=0.4, std=0.2)


@cache
def larger():
    return TINY.prepare_federation(federation())


def made_by(federation, client):
    """The images of one client's DCGAN."""
    rows = federation.auxiliary[DCGAN.POOL].reshape(federation.num_clients, -1)[client]
    return federation.images[rows]


class Adam:
    """Of one network, betas 0.5 and 0.999."""

    def __init__(self, params, rate):
        self.params, self.rate, self.count = params, rate, 0
        self.first = self.second = jax.tree.map(np.zeros_like, params)

    def step(self, grads):
        self.count += 1
        self.first = jax.tree.map(lambda m, g: 0.5 * m + 0.5 * g, self.first, grads)
        self.second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, self.second, grads)
        down, low = 1 - 0.5**self.count, 1 - 0.999**self.count
        move = lambda p, m, v: p - self.rate * (m / down) / (np.sqrt(v / low) + 1e-8)
        self.params = jax.tree.map(move, self.params, self.first, self.second)


@pytest.mark.slow
def test_two_steps_equal_the_transcription():
    shape, key = (4, 4, 1), jax.random.key(4)
    iterations, batch_size, rate = 2, 3, 0.01
    how = {"iterations": iterations, "batch_size": batch_size, "rate": rate}
    with jax.enable_x64(True):
        net = build_dcgan(shape, 2, 2)
        wide = lambda key: jax.tree.map(lambda leaf: leaf.astype(float), jax.jit(build_dcgan(shape, 2, 2).init)(key))
        draw = lambda key: jax.random.uniform(key, (batch_size, *shape), minval=-1, maxval=1)
        got, losses = jax.jit(lambda key: DCGAN.train_dcgan(key, net._replace(init=wide), draw, **how))(key)
        (made, stats), (judge, kept) = faking.double(wide(jax.random.fold_in(key, iterations)))
        makes, judges, seen = Adam(made, rate), Adam(judge, rate), []
        for index in range(iterations):
            row_key, noise_key = jax.random.split(jax.random.fold_in(key, index))
            real, latents = np.asarray(draw(row_key)), np.asarray(DCGAN.noise(noise_key, batch_size, net), float)
            fake, _ = gans.generated(makes.params, stats, latents, shape, True)

            def telling(params, real=real, fake=fake, kept=kept):
                of_real = gans.judged(params, kept, real, True)[0]
                return gans.surprise(of_real, True) + gans.surprise(gans.judged(params, kept, fake, True)[0], False)

            told, before = telling(judges.params), judges.params
            judges.step(faking.slopes(telling, before))
            kept = gans.judged(before, gans.judged(before, kept, real, True)[1], fake, True)[1]

            def fooling(params, latents=latents, stats=stats, kept=kept):
                images, _ = gans.generated(params, stats, latents, shape, True)
                return gans.surprise(gans.judged(judges.params, kept, images, True)[0], True)

            seen.append((told, fooling(makes.params)))
            before = makes.params
            makes.step(faking.slopes(fooling, before))
            stats = gans.generated(before, stats, latents, shape, True)[1]
        np.testing.assert_allclose(losses, seen, rtol=FORMULA)
        wanted = Variables(makes.params, stats), Variables(judges.params, kept)
        faking.assert_close(faking.double(got), wanted, 1e-6)


@pytest.mark.slow
def test_the_pool_stands_behind_the_images_client_by_client():
    before, after = federation(), larger()
    assert after.images.dtype == np.uint8
    assert after.images.shape == (36 + 3 * 20, 4, 4, 1)
    np.testing.assert_array_equal(after.images[:36], before.images)
    assert after.auxiliary[DCGAN.POOL].dtype == np.int32
    assert after.auxiliary[DCGAN.POOL].tolist() == [*range(36, 76), *[-1] * 20, *range(76, 96)]
    assert after.labels[36:].tolist() == [-1] * 60
    np.testing.assert_array_equal(after.labels[:36], before.labels)
    for name in ("rows", "offsets", "class_counts", "copy", "mean", "std"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    np.testing.assert_array_equal(after.auxiliary["balanced"], before.auxiliary["balanced"])
    assert set(before.auxiliary) == {"balanced"}


@pytest.mark.slow
def test_real_images_are_drawn_from_the_clients_rows_and_copies_are_among_them():
    images = np.arange(8 * 16).reshape(8, 4, 4, 1).astype(np.uint8)
    plain = federate(images, np.arange(8) // 4, [np.arange(4), np.arange(4, 8)], 2, mean=0.3, std=0.1)
    drawn = jax.jit(DCGAN._draw_images, static_argnums=3)
    seen = {}
    for name, each in (
        ("without", plain),
        ("stored", augment(plain, np.array([3, 0]))),
        ("made when drawn", augment(plain, np.array([3, 0]), store=False)),
    ):
        got = drawn(jax.random.key(0), jax.tree.map(jnp.asarray, each), 0, 400)
        seen[name] = np.round(np.asarray(got) * 255).reshape(400, 16)
        np.testing.assert_allclose(got, seen[name].reshape(got.shape) / 255, atol=FORMULA)
    own = (seen["without"][:, None] == images[:4].reshape(4, 16)).all(2)
    assert own.any(1).all()
    assert ((own.sum(0) - 100) ** 2 / 100).sum() < 16.3  # chi-squared, 3 degrees: one in a thousand
    np.testing.assert_array_equal(seen["stored"], seen["made when drawn"])
    assert len(np.unique(seen["stored"], axis=0)) == 16


HELD = np.array([[5, 2, 0, 0], [3, 0, 0, 9], [1, 4, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])


def law(counts, label, client):
    """Whom a client asks for a class, one client at a time."""
    share = [0 if other == client else held[label] for other, held in enumerate(counts)]
    if not sum(share):
        share = [float(other != client and held.sum() > 0) for other, held in enumerate(counts)]
    return np.array(share) / sum(share)


LENDING = jax.jit(DCGAN.lending_law)


@pytest.mark.parametrize("client", range(5))
def test_the_law_of_who_is_asked(client):
    labels = np.array([3, 0, 1, 2, 0])
    wanted = [law(HELD, label, client) for label in labels]
    np.testing.assert_allclose(LENDING(HELD, labels, client), wanted, rtol=FORMULA)


def numbered(pool):
    """A federation whose images are their own row numbers, as bytes; client 3 has none."""
    rows = np.full((len(HELD), pool), -1)
    holders = np.flatnonzero(HELD.sum(1))
    rows[holders] = 10 + np.arange(len(holders) * pool).reshape(-1, pool)
    images = np.arange(10 + len(holders) * pool).reshape(-1, 1, 1, 1).astype(np.uint8)
    plain = federate(images, np.zeros(len(images), np.int32), [np.arange(1)] * len(HELD), 4, mean=0.3, std=0.2)
    return plain._replace(class_counts=HELD, auxiliary={DCGAN.POOL: rows.reshape(-1)}), rows


BORROWED = jax.jit(
    lambda key, data, client, labels: DCGAN.borrow_images(key, labels, SimpleNamespace(federation=data, client=client))
)


@pytest.mark.parametrize("client", [0, 1, 3])
def test_fakes_come_from_those_who_hold_the_class_any_image_as_likely(client):
    plain, rows = numbered(pool=3)
    labels = np.repeat(np.arange(4), 5000)
    images = np.asarray(BORROWED(jax.random.key(client), plain, client, labels))
    assert images.shape == (20_000, 1, 1, 1)
    shown = np.round((images.ravel() * 0.2 + 0.3) * 255)
    for label in range(4):
        often = (shown[labels == label] == rows[:, :, None]).sum(2)  # client by image
        assert often.sum() == 5000
        wanted = 5000 * np.repeat(law(HELD, label, client)[:, None], 3, 1) / 3
        assert not often[wanted == 0].any()
        assert not often[client].any()
        some = wanted > 0
        assert ((often[some] - wanted[some]) ** 2 / wanted[some]).sum() < 31.3  # 11 degrees at most: one in a thousand


@pytest.mark.slow
def test_fakes_stand_behind_the_batch_with_the_samplers_labels():
    after = jax.tree.map(jnp.asarray, larger())
    one = Batch(jnp.ones((2, 4, 4, 1)), jnp.zeros(2, int), jnp.arange(2), jnp.ones(2, bool))
    counts = jnp.array([4, 0, 0])
    ctx = SimpleNamespace(class_counts=counts, client=jnp.asarray(0), federation=after, model=None)
    filled = Fakes(count=60, images=DCGAN.borrow_images).batch(jax.random.key(0), one, ctx)
    assert filled.real.tolist() == [True] * 2 + [False] * 60
    assert filled.extra.tolist() == [False] * 2 + [True] * 60
    assert set(filled.labels[2:].tolist()) == {1, 2}  # the client has none but class 0
    pools = [(made_by(larger(), client) / 255.0 - 0.4) / 0.2 for client in (1, 3)]
    apart = [np.abs(pool[:, None] - filled.images[None, 2:]).max((2, 3, 4)).min(0) < STEPS for pool in pools]
    assert (apart[0] | apart[1]).all()
    assert apart[0].any()
    assert apart[1].any()


SMALL = {"warm_up": 2, "fakes": 3, "width": 2, "latent": 2, "iterations": 3, "pool": 5, "seed": 3}


def records(recipe, **changes):
    """Three rounds of clients with 10, 3, 0 and 17 rows, one of which is a batch of its own and taken out."""
    plain = federation()
    settings = {"model": models.build("tiny_bn", 3, (4, 4, 1)), "federation": plain} | changes
    settings |= {"test": (plain.images, plain.labels), "participation": Participation(clients_per_round=3)}
    sim = float64.simulation(recipe, execution=replace(float64.EXECUTION, rounds_per_dispatch=1), **settings)
    state, found, _ = float64.finished(sim)
    return sim, state.variables, found


@pytest.mark.slow
def test_rounds_with_them_are_finite_and_cost_the_traffic_of_averaging():
    lent, fakes = cbfl_dcgan(**SMALL).parts
    assert lent == SharedDcgans(iterations=3, pool=5, width=2, latent=2, seed=3)
    sim, variables, found = records(Recipe("cbfl", (TINY, fakes)))  # one program less to compile than with its own
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(variables))
    plain, others, averaged = records(fedavg())
    traffic = [name for name in found[0] if name.startswith("bytes")]
    assert len(traffic) == 2
    for ours, theirs in zip(found, averaged, strict=True):
        assert all(ours[name] == theirs[name] > 0 for name in traffic)
    assert found[0]["train_loss"] == averaged[0]["train_loss"]  # warm-up
    assert found[1]["train_loss"] != averaged[1]["train_loss"]
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (variables, others)), strict=True))
    np.testing.assert_array_equal(sim.federation.class_counts, plain.federation.class_counts)
    assert len(sim.federation.images) == 36 + 3 * 20


def gray(part, federation, *_):
    """In place of training."""
    return np.full((part.pool, *federation.images.shape[1:]), 128, federation.images.dtype)


def test_methods_with_equal_dcgans_share_them(monkeypatch):
    monkeypatch.setattr(DCGAN, "_make_pool", gray)
    workshop, plain = setup.SharedInputs(None, None), federation()
    first, again = (workshop.enlarged(plain, cbfl_dcgan(**(SMALL | {"weight": weight}))) for weight in (1.0, 0.5))
    assert first is again
    assert workshop.enlarged(plain, cbfl_dcgan(**(SMALL | {"seed": 4}))) is not first
    assert workshop.enlarged(plain, fedavg()) is plain


def test_what_cannot_be_is_refused(monkeypatch):
    monkeypatch.setattr(DCGAN, "_make_pool", gray)
    plain = federation()
    with pytest.raises(ValueError, match="fakes: received a federation without DCGANs' images"):
        records(Recipe("alone", (Fakes(images=DCGAN.borrow_images, warm_up=0),)))
    with pytest.raises(ValueError, match="shared DCGANs: received PrivateMean"):
        records(recipes.combine(recipes.dp(), cbfl_dcgan(**SMALL)), model=models.build("mlp", 3, (4, 4, 1)))
    with pytest.raises(ValueError, match="shared DCGANs: received a federation that has their images"):
        TINY.prepare_federation(TINY.prepare_federation(plain))
    alone = federate(plain.images, plain.labels, [np.arange(5), np.arange(0)], 3)
    with pytest.raises(ValueError, match="in which 1 of 2 clients have rows"):
        records(cbfl_dcgan(**SMALL), federation=alone)
    with pytest.raises(ValueError, match=r"image_shape: received \(6, 6, 1\)"):
        TINY.prepare_federation(plain._replace(images=pixels(36, 6)))
    few = dataclasses.replace(TINY, pool=5)
    endless = dataclasses.replace(TINY, pool=2**30)
    with pytest.raises(ValueError, match="pool: 3,221,225,472 images make 3,221,225,508 rows"):
        endless.prepare_federation(plain)
    monkeypatch.setattr(DCGAN, "available_bytes", lambda: (2 * 36 + 15) * 16)
    few.prepare_federation(plain)
    monkeypatch.setattr(DCGAN, "available_bytes", lambda: (2 * 36 + 15) * 16 - 1)
    with pytest.raises(ValueError, match="pool: 15 images take 2.4e-07 GB.*are free: ask for a smaller pool"):
        few.prepare_federation(plain)


@pytest.mark.slow
def test_a_clients_dcgan_depends_on_its_rows_and_the_seed_alone():
    np.testing.assert_array_equal(TINY.prepare_federation(federation()).images, larger().images)
    images = federation().images.copy()
    images[OWNED[3][4:]] //= 2
    images[33] = 0  # the server's
    changed = TINY.prepare_federation(federation()._replace(images=images))
    for client in (0, 1):
        np.testing.assert_array_equal(made_by(changed, client), made_by(larger(), client))
    assert (made_by(changed, 3) != made_by(larger(), 3)).any()
    reseeded = dataclasses.replace(TINY, seed=1).prepare_federation(federation())
    assert all((made_by(reseeded, client) != made_by(larger(), client)).any() for client in (0, 1, 3))
