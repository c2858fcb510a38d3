"""The papers that the recipes come from, and how they are written in BibTeX."""

from collections.abc import Mapping
from typing import NamedTuple


class Paper(NamedTuple):
    """A paper.

    Attributes:
        kind: of BibTeX's entries.
        venue: its usual short name, or "arXiv".
        authors: "Family, Given" each, as BibTeX writes them.
        fields: the other fields of the entry, among them title and year.
    """

    kind: str
    venue: str
    authors: tuple[str, ...]
    fields: Mapping[str, str]

    @property
    def short(self) -> str:
        """Authors, venue and year in one line."""
        families = [name.partition(",")[0] for name in self.authors]
        named = f"{families[0]} et al." if len(families) > 2 else " and ".join(families)
        return f"{named}, {self.venue} {self.fields['year']}"

    def bibtex(self, key: str) -> str:
        """The entry under a key."""
        fields = {"author": " and ".join(self.authors), **self.fields}
        width = max(map(len, fields))
        lines = [f"  {name:<{width}} = {{{value}}}," for name, value in fields.items()]
        return "\n".join([f"@{self.kind}{{{key},", *lines, "}"])


_PMLR = {"series": "Proceedings of Machine Learning Research"}
_NEURIPS = {"booktitle": "Advances in Neural Information Processing Systems", "volume": "33"}
_ICLR = {"booktitle": "International Conference on Learning Representations"}


def _paper(kind: str, venue: str, authors: str, **fields: str) -> Paper:
    return Paper(kind, venue, tuple(authors.split(" and ")), fields)


PAPERS: dict[str, Paper] = {
    "mcmahan2017fedavg": _paper(
        "inproceedings",
        "AISTATS",
        'McMahan, H. Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and {Ag{\\"u}era y Arcas}, Blaise',
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        booktitle="Proceedings of the 20th International Conference on Artificial Intelligence and Statistics",
        **_PMLR,
        volume="54",
        pages="1273--1282",
        year="2017",
    ),
    "li2020fedprox": _paper(
        "inproceedings",
        "MLSys",
        "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and Smith, Virginia",
        title="Federated Optimization in Heterogeneous Networks",
        booktitle="Proceedings of Machine Learning and Systems",
        volume="2",
        pages="429--450",
        year="2020",
    ),
    "karimireddy2020scaffold": _paper(
        "inproceedings",
        "ICML",
        "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank J. and "
        "Stich, Sebastian U. and Suresh, Ananda Theertha",
        title="{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        booktitle="Proceedings of the 37th International Conference on Machine Learning",
        **_PMLR,
        volume="119",
        pages="5132--5143",
        year="2020",
    ),
    "wang2020fednova": _paper(
        "inproceedings",
        "NeurIPS",
        "Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent",
        title="Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        **_NEURIPS,
        pages="7611--7623",
        year="2020",
    ),
    "acar2021feddyn": _paper(
        "inproceedings",
        "ICLR",
        "Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and Whatmough, Paul and "
        "Saligrama, Venkatesh",
        title="Federated Learning Based on Dynamic Regularization",
        **_ICLR,
        year="2021",
    ),
    "li2021moon": _paper(
        "inproceedings",
        "CVPR",
        "Li, Qinbin and He, Bingsheng and Song, Dawn",
        title="Model-Contrastive Federated Learning",
        booktitle="Proceedings of the {IEEE/CVF} Conference on Computer Vision and Pattern Recognition",
        pages="10713--10722",
        year="2021",
    ),
    "li2021fedrs": _paper(
        "inproceedings",
        "KDD",
        "Li, Xin-Chun and Zhan, De-Chuan",
        title="{FedRS}: Federated Learning with Restricted Softmax for Label Distribution Non-{IID} Data",
        booktitle="Proceedings of the 27th {ACM SIGKDD} Conference on Knowledge Discovery and Data Mining",
        pages="995--1005",
        year="2021",
    ),
    "oh2022fedbabu": _paper(
        "inproceedings",
        "ICLR",
        "Oh, Jaehoon and Kim, SangMook and Yun, Se-Young",
        title="{FedBABU}: Toward Enhanced Representation for Federated Image Classification",
        **_ICLR,
        year="2022",
    ),
    "zhang2022fedlc": _paper(
        "inproceedings",
        "ICML",
        "Zhang, Jie and Li, Zhiqi and Li, Bo and Xu, Jianghe and Wu, Shuang and Ding, Shouhong and Wu, Chao",
        title="Federated Learning with Label Distribution Skew via Logits Calibration",
        booktitle="Proceedings of the 39th International Conference on Machine Learning",
        **_PMLR,
        volume="162",
        pages="26311--26329",
        year="2022",
    ),
    "ren2020balanced": _paper(
        "inproceedings",
        "NeurIPS",
        "Ren, Jiawei and Yu, Cunjun and Sheng, Shunan and Ma, Xiao and Zhao, Haiyu and Yi, Shuai and Li, Hongsheng",
        title="Balanced Meta-Softmax for Long-Tailed Visual Recognition",
        **_NEURIPS,
        pages="4175--4186",
        year="2020",
    ),
    "xu2023rebafl": _paper(
        "article",
        "arXiv",
        "Xu, Jian and Yang, Meilin and Ding, Wenbo and Huang, Shao-Lun",
        title="Stabilizing and Improving Federated Learning with Non-{IID} Data and Client Dropout",
        journal="arXiv preprint arXiv:2303.06314",
        year="2023",
    ),
    "tang2021iwds": _paper(
        "inproceedings",
        "FTL-IJCAI",
        "Tang, Zhenheng and Hu, Zhikai and Shi, Shaohuai and Cheung, Yiu-ming and Jin, Yilun and Ren, Zhenghang and "
        "Chu, Xiaowen",
        title="Data Resampling for Federated Learning with Non-{IID} Labels",
        booktitle="International Workshop on Federated and Transfer Learning for Data Sparsity and Confidentiality "
        "in Conjunction with {IJCAI}",
        year="2021",
    ),
    "cui2019effective": _paper(
        "inproceedings",
        "CVPR",
        "Cui, Yin and Jia, Menglin and Lin, Tsung-Yi and Song, Yang and Belongie, Serge",
        title="Class-Balanced Loss Based on Effective Number of Samples",
        booktitle="Proceedings of the {IEEE/CVF} Conference on Computer Vision and Pattern Recognition",
        year="2019",
    ),
    "he2016deep": _paper(
        "inproceedings",
        "CVPR",
        "He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian",
        title="Deep Residual Learning for Image Recognition",
        booktitle="Proceedings of the {IEEE} Conference on Computer Vision and Pattern Recognition",
        pages="770--778",
        year="2016",
    ),
    "duan2019astraea": _paper(
        "inproceedings",
        "ICCD",
        "Duan, Moming and Liu, Duo and Chen, Xianzhang and Tan, Yujuan and Ren, Jinting and Qiao, Lei and Liang, Liang",
        title="Astraea: Self-Balancing Federated Learning for Improving Classification Accuracy of Mobile Deep "
        "Learning Applications",
        booktitle="{IEEE} 37th International Conference on Computer Design",
        pages="246--254",
        year="2019",
    ),
    "yang2021flcir": _paper(
        "inproceedings",
        "EUSIPCO",
        "Yang, Miao and Wang, Ximin and Zhu, Hongbin and Wang, Haifeng and Qian, Hua",
        title="Federated Learning with Class Imbalance Reduction",
        booktitle="29th European Signal Processing Conference",
        pages="2174--2178",
        year="2021",
    ),
    "li2023cbfl": _paper(
        "article",
        "Chinese Journal of Computers",
        "Li, Zhi-Peng and Guo, Yong and Chen, Yao-Fo and Wang, Yao-Wei and Zeng, Wei and Tan, Ming-Kui",
        title="Class-Balanced Federated Learning Based on Data Generation",
        journal="Chinese Journal of Computers",
        year="2023",
        doi="10.11897/SP.J.1016.2023.00609",
        note="In Chinese",
    ),
    "yin2018robust": _paper(
        "inproceedings",
        "ICML",
        "Yin, Dong and Chen, Yudong and Ramchandran, Kannan and Bartlett, Peter",
        title="{Byzantine}-Robust Distributed Learning: Towards Optimal Statistical Rates",
        booktitle="Proceedings of the 35th International Conference on Machine Learning",
        **_PMLR,
        volume="80",
        pages="5650--5659",
        year="2018",
    ),
    "blanchard2017machine": _paper(
        "inproceedings",
        "NeurIPS",
        "Blanchard, Peva and {El Mhamdi}, El Mahdi and Guerraoui, Rachid and Stainer, Julien",
        title="Machine Learning with Adversaries: {Byzantine} Tolerant Gradient Descent",
        booktitle="Advances in Neural Information Processing Systems",
        volume="30",
        year="2017",
    ),
    "sun2019can": _paper(
        "article",
        "arXiv",
        "Sun, Ziteng and Kairouz, Peter and Suresh, Ananda Theertha and McMahan, H. Brendan",
        title="Can You Really Backdoor Federated Learning?",
        journal="arXiv preprint arXiv:1911.07963",
        year="2019",
    ),
    "nguyen2022flame": _paper(
        "inproceedings",
        "USENIX Security",
        'Nguyen, Thien Duc and Rieger, Phillip and Chen, Huili and Yalame, Hossein and M{\\"o}llering, Helen and '
        "Fereidooni, Hossein and Marchal, Samuel and Miettinen, Markus and Mirhoseini, Azalia and Zeitouni, Shaza and "
        "Koushanfar, Farinaz and Sadeghi, Ahmad-Reza and Schneider, Thomas",
        title="{FLAME}: Taming Backdoors in Federated Learning",
        booktitle="31st USENIX Security Symposium",
        year="2022",
    ),
    "hsu2019measuring": _paper(
        "article",
        "arXiv",
        "Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
        title="Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        journal="arXiv preprint arXiv:1909.06335",
        year="2019",
    ),
    "reddi2021adaptive": _paper(
        "inproceedings",
        "ICLR",
        "Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and "
        "Kone{\\v{c}}n{\\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan",
        title="Adaptive Federated Optimization",
        **_ICLR,
        year="2021",
    ),
}
"""Key -> the paper."""

BEHIND: dict[str, tuple[str, ...]] = {
    "astraea": ("duan2019astraea",),
    "balanced_softmax": ("ren2020balanced",),
    "cbfl": ("li2023cbfl",),
    "crop_flip": ("he2016deep",),
    "faults": ("blanchard2017machine",),
    "fedadagrad": ("reddi2021adaptive",),
    "fedadam": ("reddi2021adaptive",),
    "fedavg": ("mcmahan2017fedavg",),
    "fedavg_ft": ("xu2023rebafl",),
    "fedavgm": ("hsu2019measuring",),
    "fedbabu": ("oh2022fedbabu",),
    "feddyn": ("acar2021feddyn",),
    "fedlc": ("zhang2022fedlc",),
    "fednova": ("wang2020fednova",),
    "fedprox": ("li2020fedprox",),
    "fedrs": ("li2021fedrs",),
    "fedyogi": ("reddi2021adaptive",),
    "flcir": ("yang2021flcir",),
    "iwds": ("tang2021iwds", "cui2019effective"),
    "median": ("yin2018robust",),
    "moon": ("li2021moon",),
    "norm_clipping": ("sun2019can", "nguyen2022flame"),
    "rebafl": ("xu2023rebafl",),
    "scaffold": ("karimireddy2020scaffold",),
    "trimmed_mean": ("yin2018robust",),
}
"""Name of a recipe -> the keys of its papers."""
