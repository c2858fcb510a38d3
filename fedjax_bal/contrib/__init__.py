"""Plug-ins that come along, each loaded by its name: `--plugin fedjax_bal.contrib.NAME`. The core imports none of them.

| name | what it registers |
|---|---|
| `dcgan` | the recipe `cbfl_dcgan`: CBFL with images of DCGANs that clients train |
| `late_control_variates` | the recipe of this name: what the code of ReBaFL and CBFL calls SCAFFOLD |
| `privacy` | the analysis `privacy`: attacks on generated images and shared prototypes |
| `trackers` | the trackers `tensorboard`, `wandb`, `mlflow` and `trackio`, which `--track` loads |
"""
