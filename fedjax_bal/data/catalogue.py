"""The data sets that `load` knows: shapes, class names and normalisation constants."""

from types import MappingProxyType
from typing import NamedTuple


class DatasetInfo(NamedTuple):
    """What is known about a data set before it is read.

    Attributes:
        description: one line for the list of data sets.
        mean: per-channel mean of the pixels scaled to [0, 1]; empty where it is that of the training images.
        std: per-channel standard deviation on the same scale; empty as well.
        image_shape: `(H, W, K)`; empty where the files decide.
        class_names: C names, in the order of the labels; empty where the files decide.
        counts: how many images there are for training and for testing; empty where the files decide.
        clients: whether it says whose each training image is, so that there is a partition by writer or user.
    """

    description: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    image_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    clients: bool = False

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)


_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_DIGITS = tuple("0123456789")
_CAPITALS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_EMNIST = (*_DIGITS, *_CAPITALS, *"abdefghnqrt")
_CHARACTERS = (*_DIGITS, *_CAPITALS, *"abcdefghijklmnopqrstuvwxyz")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_SPECIES = tuple(map(str, range(1010)))
_GREY = {"mean": (0.1307,), "std": (0.3081,), "image_shape": (28, 28, 1)}
_COLOUR = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010), "image_shape": (32, 32, 3)}
_NATURAL = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "class_names": _SPECIES}

DATASETS = MappingProxyType(
    {
        "fashion_mnist_small": DatasetInfo(
            "Fashion-MNIST, a balanced sixth that comes with the package: 10,000 + 2,000 grey images 28x28, 10 classes",
            class_names=_FASHION,
            **_GREY,
            counts=(10_000, 2_000),
        ),
        "fashion_mnist": DatasetInfo(
            "Fashion-MNIST: 60,000 + 10,000 grey images 28x28 of clothing, 10 classes",
            class_names=_FASHION,
            **_GREY,
            counts=(60_000, 10_000),
        ),
        "mnist": DatasetInfo(
            "MNIST: 60,000 + 10,000 grey images 28x28 of handwritten digits, 10 classes",
            class_names=_DIGITS,
            **_GREY,
            counts=(60_000, 10_000),
        ),
        "cifar10": DatasetInfo(
            "CIFAR-10: 50,000 + 10,000 colour images 32x32, 10 classes",
            class_names=_CIFAR10,
            **_COLOUR,
            counts=(50_000, 10_000),
        ),
        "labels_47": DatasetInfo(
            "Labels only: 47 classes as in EMNIST, 16,000 + 10 blank images 1x1 of each, to study who holds what",
            mean=(0.0,),
            std=(1.0,),
            image_shape=(1, 1, 1),
            class_names=_EMNIST,
            counts=(752_000, 470),
        ),
        "cifar100": DatasetInfo(
            "CIFAR-100: 50,000 + 10,000 colour images 32x32, 100 classes",
            class_names=tuple(_CIFAR100_NAMES.split()),
            **_COLOUR,
            counts=(50_000, 10_000),
        ),
        "emnist_balanced": DatasetInfo(
            "EMNIST Balanced: 112,800 + 18,800 grey images 28x28 of digits and letters, 47 classes of equal size",
            class_names=_EMNIST,
            **_GREY,
            counts=(112_800, 18_800),
        ),
        "emnist_bymerge": DatasetInfo(
            "EMNIST ByMerge: 697,932 + 116,323 grey images 28x28 of digits and letters, 47 classes of unequal size",
            class_names=_EMNIST,
            **_GREY,
            counts=(697_932, 116_323),
        ),
        "emnist_byclass": DatasetInfo(
            "EMNIST ByClass: 697,932 + 116,323 grey images 28x28 of digits and letters, 62 classes of unequal size",
            class_names=_CHARACTERS,
            counts=(697_932, 116_323),
            **_GREY,
        ),
        "emnist_astraea": DatasetInfo(
            "EMNIST ByMerge's training images, tested on Balanced's: 697,932 + 18,800 grey images 28x28, 47 classes",
            class_names=_EMNIST,
            **_GREY,
            counts=(697_932, 18_800),
        ),
        "femnist": DatasetInfo(
            "FEMNIST of LEAF: about 800,000 grey images 28x28 of digits and letters by 3,550 writers, 62 classes",
            image_shape=(28, 28, 1),
            class_names=_CHARACTERS,
            clients=True,
        ),
        "svhn": DatasetInfo(
            "SVHN, cropped: 73,257 + 26,032 colour images 32x32 of house numbers' digits, 10 classes of unequal size",
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            image_shape=(32, 32, 3),
            class_names=_DIGITS,
            counts=(73_257, 26_032),
        ),
        "cinic10": DatasetInfo(
            "CINIC-10: 90,000 + 90,000 colour images 32x32 from CIFAR-10 and ImageNet, 10 classes",
            mean=(0.47889522, 0.47227842, 0.43047404),
            std=(0.24205776, 0.23828046, 0.25874835),
            image_shape=(32, 32, 3),
            class_names=_CIFAR10,
            counts=(90_000, 90_000),
        ),
        "inaturalist2019": DatasetInfo(
            "iNaturalist 2019: 265,213 + 3,030 colour images of 1,010 species, made 224x224, which takes 38 GiB",
            image_shape=(224, 224, 3),
            **_NATURAL,
            counts=(265_213, 3_030),
            clients=True,
        ),
        "inaturalist2019_32": DatasetInfo(
            "iNaturalist 2019, made 32x32: 265,213 + 3,030 colour images of 1,010 species",
            image_shape=(32, 32, 3),
            **_NATURAL,
            counts=(265_213, 3_030),
            clients=True,
        ),
        "npz": DatasetInfo("Your own arrays, in one file of NumPy's: path is that file"),
        "image_folder": DatasetInfo(
            "Your own image files, a folder for each class: path is the folder with train/ and test/"
        ),
    }
)
"""Name of each data set -> what is known about it.

The sets of MNIST, Fashion-MNIST and EMNIST are normalised with the constants of MNIST and both CIFARs with those of
CIFAR-10, as the papers do whose tables are reproduced here; CINIC-10 and SVHN with their own, which are published;
iNaturalist with those of ImageNet; the others with those of their training images.
Of CINIC-10 the 90,000 images for validation are not used; those of iNaturalist are its test set, and its classes are
called by their numbers. Whether some of EMNIST Balanced's test images are among ByMerge's training images is not known.
"""
