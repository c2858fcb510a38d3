"""The papers behind the methods, as BibTeX."""

FEDNTD = """
@inproceedings{lee2022fedntd,
  author    = {Lee, Gihun and Jeong, Minchan and Shin, Yongjin and Bae, Sangmin and Yun, Se-Young},
  title     = {Preservation of the Global Knowledge by Not-True Distillation in Federated Learning},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {35},
  year      = {2022},
  venue     = {NeurIPS},
}
"""

FOCAL = """
@inproceedings{lin2017focal,
  author    = {Lin, Tsung-Yi and Goyal, Priya and Girshick, Ross and He, Kaiming and Doll{\\'a}r, Piotr},
  title     = {Focal Loss for Dense Object Detection},
  booktitle = {Proceedings of the IEEE International Conference on Computer Vision},
  year      = {2017},
  venue     = {ICCV},
}

@article{sarkar2020fedfocal,
  author    = {Sarkar, Dipankar and Narang, Ankur and Rai, Sumit},
  title     = {{Fed-Focal} Loss for Imbalanced Data Classification in Federated Learning},
  journal   = {arXiv preprint arXiv:2011.06283},
  year      = {2020},
  venue     = {arXiv},
}
"""

FEDDISCO = """
@inproceedings{ye2023feddisco,
  author    = {Ye, Rui and Xu, Mingkai and Wang, Jianyu and Xu, Chenxin and Chen, Siheng and Wang, Yanfeng},
  title     = {{FedDisco}: Federated Learning with Discrepancy-Aware Collaboration},
  booktitle = {Proceedings of the 40th International Conference on Machine Learning},
  year      = {2023},
  venue     = {ICML},
}
"""

FEDROD = """
@inproceedings{chen2022fedrod,
  author    = {Chen, Hong-You and Chao, Wei-Lun},
  title     = {On Bridging Generic and Personalized Federated Learning for Image Classification},
  booktitle = {International Conference on Learning Representations},
  year      = {2022},
  venue     = {ICLR},
}
"""

CREFF = """
@inproceedings{shang2022creff,
  author    = {Shang, Xinyi and Lu, Yang and Huang, Gang and Wang, Hanzi},
  title     = {Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with Federated
               Features},
  booktitle = {Proceedings of the 31st International Joint Conference on Artificial Intelligence},
  year      = {2022},
  venue     = {IJCAI},
}
"""

CCVR = """
@inproceedings{luo2021ccvr,
  author    = {Luo, Mi and Chen, Fei and Hu, Dapeng and Zhang, Yifan and Liang, Jian and Feng, Jiashi},
  title     = {No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-{IID} Data},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {34},
  year      = {2021},
  venue     = {NeurIPS},
}
"""

FEDSAM = """
@inproceedings{qu2022fedsam,
  author    = {Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo},
  title     = {Generalized Federated Learning via Sharpness Aware Minimization},
  booktitle = {Proceedings of the 39th International Conference on Machine Learning},
  year      = {2022},
  venue     = {ICML},
}
"""
