"""Mutants that compute the same as the original: file, line, change, and why it changes nothing."""

EXPLAINED: dict[tuple[str, str, str], str] = {
    (
        "fedjax_bal/balance/prior.py",
        "chosen = jnp.take_along_axis(log_probabilities, labels[:, None], axis=-1)[:, 0]",
        "0 -> 1",
    ): "The axis has one place, and jax takes the last one for a place beyond the end.",
    (
        "fedjax_bal/balance/augmentation.py",
        "below = _snap_to_integers(counts.sum(-1, keepdims=True) / jnp.where(present, counts.shape[-1] * counts, 1.0))",
        "jnp.where(present, counts.shape[-1] * counts, 1.0) -> (counts.shape[-1] * counts)",
    ): "The infinite ratio of an absent class is replaced two lines below, and integers of copies have no derivative.",
    (
        "fedjax_bal/engine/device/drawing.py",
        "return starts[drawn] + jnp.minimum(inside, class_counts[drawn] - 1)",
        "class_counts[drawn] - 1 -> class_counts[drawn]",
    ): "A word is at most 1 - 2^-23, so that its product with a count is at least one float below the count.",
    (
        "fedjax_bal/jax_setup.py",
        'return known.jax_num_cpu_devices >= 0 or "xla_force_host_platform_device_count" in flags',
        "0 -> 1",
    ): "jax doesn't start with 0 devices.",
    (
        "fedjax_bal/engine/host/packing.py",
        "current = min(current - 1, int(current * 0.95))",
        "current * 0.95 -> (current / 0.95)",
    ): "All widths are tried in place of some, which takes longer and wastes no more.",
    (
        "fedjax_bal/parts/ccvr.py",
        "places = jnp.arange(covariances.shape[-1])",
        "-1 -> -2",
    ): "Covariances are square.",
    (
        "fedjax_bal/parts/cropping.py",
        "return lax.dynamic_slice(image, (corner[0], corner[1], 0), shape)",
        "1 -> 2",
    ): "A corner has two numbers, and jax takes the last one for a place beyond the end.",
    (
        "fedjax_bal/parts/fedexp.py",
        "ratio = (weights * jnp.where(weights > 0, each, 0.0)).sum() / (2 * (whole + epsilon))",
        "0.0 -> 1.0",
    ): "A weight that isn't above zero is zero, and so is its product with any number.",
    (
        "fedjax_bal/engine/host/planner.py",
        "assignments, works = zip(*map(self._assign, plans), strict=True)",
        "True -> False",
    ): "Every plan gives two things.",
    (
        "fedjax_bal/engine/device/held_out.py",
        "correct = real & (outputs.logits.argmax(-1) == labels)",
        "real & (outputs.logits.argmax(-1) == labels) -> (outputs.logits.argmax(-1) == labels)",
    ): "Places beyond the end belong to client N, whose hits are dropped.",
    (
        "fedjax_bal/engine/device/run_axis.py",
        "return jnp.minimum(numbers // self.chains, self.count - 1)",
        "1 -> 0",
    ): "For empty places, which count for nothing: jax reads the last run for one beyond the end, and adds to none.",
}
