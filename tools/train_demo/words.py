# ruff: noqa: E501, SIM905 (a template or a row of words stays on its line)
"""The words of the stories: people, places, wishes. Data, no logic."""

from __future__ import annotations

GIRLS = """
    Mia Lily Anna Emma Rosa Nora Clara Ella Zoe Ruby Ivy Lena Maya Tess Sara Alma Edith Olive Hana Wilma
    Ada Bella Cora Dora Fern Gilda Hazel Ines June Kira Luna Mabel Nell Opal Polly Quinn Rita Suki Tilda
    Una
""".split()
BOYS = """
    Tom Ben Max Leo Sam Finn Otto Hugo Paul Karl Noah Emil Oscar Jack Theo Anton Felix Luke Adam Igor
    Bram Carl Dan Eli Fred Gus Henry Ivan Jonas Kai Liam Milo Ned Omar Pete Ravi Simon Tim Udo Victor
""".split()
SYLLABLES = """
    ba bo da do fa fi ga ka ki la lo lu ma mi mo na ni no pa pi po ra ri ro sa ta ti to tu wo zi zu
""".split()

ANIMALS = """
    fox rabbit bear mouse squirrel hedgehog badger otter duck frog turtle cat dog pig lamb goat pony
    deer beaver mole penguin elephant robin sparrow owl lizard monkey dragon giant robot snowman fairy
""".split()
HELPERS = ("owl", "tortoise", "raven", "toad", "donkey", "snail", "heron", "crane", "carp", "oak tree")

TRAITS = {  # a hero's character, and two signs of it
    "curious": ("asked questions all day long", "wanted to know how everything worked"),
    "brave": ("was the first to climb every tree", "was not even afraid of thunder"),
    "kind": ("always had time to help", "never walked past anyone who was sad"),
    "shy": ("spoke in a very soft voice", "hid when visitors came"),
    "clever": ("could solve every puzzle", "knew the names of all the stars"),
    "clumsy": ("often tripped over a stone", "dropped a cup almost every day"),
    "cheerful": ("sang from morning to night", "laughed even when it rained"),
    "lazy": ("slept until noon", "never did today what could wait until tomorrow"),
    "impatient": ("could not wait for anything", "ran ahead of everyone else"),
    "proud": ("did not like to ask for help", "told everyone about every little success"),
    "careful": ("looked twice before every step", "kept everything in neat little boxes"),
    "dreamy": ("watched the clouds for hours", "often forgot what day it was"),
}

COLOURS = ["red", "blue", "green", "yellow", "orange", "golden", "silver", "purple", "white", "brown"]
LOOKS = ["little", "big", "tiny", "shiny", "old", "new", "fine", "strange", "lovely", "funny"]
THINGS = {  # the wishes, by their kind
    "light": "kite hat scarf balloon map feather flag umbrella ribbon".split(),
    "round": "ball bell drum ring marble wheel coin".split(),
    "heavy": "boat lantern book cup whistle blanket basket key flute wagon pillow clock coat spoon box".split(),
}

PLACES = (  # a place, and its preposition
    ("forest", "in"), ("river", "by"), ("hill", "on"), ("garden", "in"), ("village", "in"), ("sea", "by"),
    ("lake", "by"), ("meadow", "in"), ("mill", "near"), ("mountain", "on"), ("farm", "on"), ("market", "near"),
    ("castle", "in"), ("island", "on"), ("valley", "in"), ("cave", "in"), ("bridge", "near"), ("lighthouse", "in"),
    ("harbour", "near"), ("orchard", "in"), ("town", "in"), ("tower", "in"), ("pond", "by"), ("field", "in"),
)  # fmt: skip

FOODS = {  # singular: plural
    "apple": "apples", "pear": "pears", "cookie": "cookies", "plum": "plums", "berry": "berries", "nut": "nuts",
    "carrot": "carrots", "bun": "buns", "pancake": "pancakes", "cherry": "cherries", "egg": "eggs",
    "muffin": "muffins", "acorn": "acorns", "peach": "peaches", "orange": "oranges",
}  # fmt: skip

HIDING = (  # a place where the lost thing is not, and what the hero finds there
    ("under the bed", "an old sock"), ("behind the door", "a sleepy spider"), ("in the cupboard", "a jar of jam"),
    ("under the table", "a few crumbs"), ("in the shed", "a rusty rake"), ("behind the stove", "a warm cat"),
    ("in the tall grass", "a green beetle"), ("under the bench", "a family of ants"), ("in the barn", "a pile of hay"),
    ("on the shelf", "a lot of dust"), ("behind the well", "a wet stone"), ("in the big chest", "an empty bottle"),
)  # fmt: skip

FEARS = (  # what is feared, its sign, what it was, what the hero does
    ("the dark", "a strange shape stood by the wall", "it was only a coat on a hook", "lit a small candle"),
    ("the thunder", "something boomed behind the house", "it was only an empty barrel that rolled in the wind",
     "counted slowly to ten"),
    ("the deep water", "something splashed close to the shore", "it was only a fat old frog", "took one small step at a time"),
    ("ghosts", "something white waved in the dark", "it was only a sheet that hung out to dry", "walked up and touched it"),
    ("the big forest", "two yellow eyes looked out of a bush", "it was only a baby owl", "held the lantern high"),
    ("the old house", "a long, sad sound came from the roof", "it was only the wind in the chimney", "opened the door wide"),
    ("wolves", "something howled behind the hill", "it was only a lost puppy", "called out in a friendly voice"),
)  # fmt: skip

PROJECTS = (  # what is built, its parts, what ruins it, the improvement, what it is good for
    ("boat", ("boards", "nails", "rope"), "it filled with water and sank", "closed every hole with tar", "sailed it"),
    ("raft", ("logs", "rope", "a bed sheet"), "the logs drifted apart", "tied every knot twice", "sailed it"),
    ("tree house", ("boards", "nails", "a ladder"), "the floor fell down with a crash", "chose a stronger branch",
     "slept in it"),
    ("bridge", ("stones", "boards", "rope"), "the water washed it away", "used bigger stones", "walked over it"),
    ("snow castle", ("snow", "ice", "two buckets"), "the sun melted it", "built it in the shade", "played in it"),
    ("cart", ("boards", "four wheels", "nails"), "one wheel rolled away", "put a pin in every wheel", "rode in it"),
    ("bird house", ("boards", "straw", "nails"), "the wind blew it off the tree", "fixed it with strong wire",
     "watched the birds in it"),
    ("flying machine", ("paper", "sticks", "feathers"), "it fell straight into the mud", "made the wings longer",
     "flew in it"),
)  # fmt: skip

TRAPS = (  # who is stuck, where, how the hero helps, the trouble later, how the favour is returned
    ("bee", "in a spider's web", "cut the threads one by one",
     "got lost in the fog", "showed the way home by flying ahead"),
    ("lamb", "in a thorny bush", "bent the branches apart",
     "sat in a hut without a fire", "kept everyone warm through the cold night"),
    ("fish", "in a small, dry pool", "carried it to the river in a bucket",
     "dropped the house key into the lake", "brought back the key from the deep water"),
    ("bird", "in an old net", "opened the knots with great care",
     "could not find the path in the woods", "flew up high and saw the right path"),
    ("mole", "under a heavy stone", "rolled the stone away with a stick",
     "was locked out of the garden", "dug a tunnel under the locked gate"),
    ("goat", "on a narrow rock", "threw up a rope and held it tight",
     "was stuck on the road with a broken cart", "pulled the broken cart out of the mud"),
    ("mouse", "in a deep pot", "put a spoon into it like a ladder",
     "could not untie the boat before the flood", "gnawed through the rope that held the boat"),
)  # fmt: skip

RIDDLES = (  # question and answer, in our own words
    ("What has a bed but never sleeps?", "a river"),
    ("What has hands but cannot clap?", "a clock"),
    ("What gets shorter the longer it shines?", "a candle"),
    ("What follows you all day and leaves you at night?", "my shadow"),
    ("What has many teeth but never bites?", "a comb"),
    ("What falls all winter and never gets hurt?", "the snow"),
    ("What can fill a room and takes no space?", "the light"),
    ("What has a neck but no head?", "a bottle"),
    ("What goes up and down the hill and never moves?", "a path"),
    ("What answers every call and has no mouth?", "an echo"),
)

SEEDS = (  # a seed, and the plant it becomes
    ("bean", "a stalk as tall as the roof"), ("sunflower seed", "a flower as bright as the sun"),
    ("pumpkin seed", "a pumpkin as big as a cart"), ("apple seed", "a small tree with three green leaves"),
    ("cherry stone", "a tree full of white blossoms"), ("acorn", "a strong young oak"),
    ("tulip bulb", "a red tulip with a yellow heart"), ("melon seed", "a melon so heavy that two had to carry it"),
)  # fmt: skip

DISHES = (  # a dish, its parts that are counted, its parts that are measured
    ("apple cake", ("apple", "egg"), ("cups of flour", "spoons of sugar")),
    ("berry pie", ("berry", "egg"), ("cups of flour", "spoons of butter")),
    ("carrot soup", ("carrot", "nut"), ("cups of water", "spoons of salt")),
    ("plum jam", ("plum", "cherry"), ("cups of sugar", "spoons of water")),
    ("nut bread", ("nut", "egg"), ("cups of flour", "spoons of honey")),
    ("fruit salad", ("pear", "peach", "orange"), ("spoons of honey", "cups of cream")),
)

OWNERS = (  # a person, and the thing that the person trades
    ("baker", "a loaf of bread"), ("farmer", "a sack of corn"), ("hen", "a white egg"), ("cow", "a jug of milk"),
    ("miller", "a bag of flour"), ("weaver", "a piece of cloth"), ("sheep", "a ball of wool"),
    ("fisherman", "a silver fish"), ("gardener", "a bunch of roses"), ("bee keeper", "a pot of honey"),
    ("smith", "an iron hook"), ("shoemaker", "a pair of boots"), ("potter", "a clay pot"), ("squirrel", "a bag of nuts"),
    ("tailor", "a warm coat"), ("queen", "a gold coin"),
)  # fmt: skip
FREE_GIFTS = ("a song", "a funny story", "a dance", "a kind word", "a good joke", "a riddle", "a smile")

MISHAPS = (  # the thing that breaks, and how
    ("window", "the ball flew straight into it"), ("blue vase", "one elbow pushed it off the table"),
    ("big jug", "it slipped out of wet fingers"), ("garden fence", "the cart rolled right through it"),
    ("mirror", "a stone bounced the wrong way"), ("clock", "it fell down from the wall"),
    ("flower pot", "a wild jump ended on top of it"), ("best plate", "the tray was much too full"),
)  # fmt: skip

NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty
""".split()
