# ruff: noqa: E501 (a template or a row of words stays on its line)
"""The plots: each adds what it needs to the cast and returns templates for `grammar.expand`.

A plot is a function of the story's `Draw`; it returns the possible titles, the middle of the story and the
possible morals. All plots begin with the same rules (who, where, how old, which friend, which wish), which
are in `RULES` with the other small rules. `h` is the hero, `f` the friend, `w` a wise helper, `thing` the
wish.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import words
from grammar import Count, definite, with_article


@dataclass
class Draw:
    """The random generator and the cast of a story."""

    rng: random.Random
    cast: dict[str, object] = field(default_factory=dict)

    def count(self, n: int, noun: str) -> Count:
        """``n`` pieces of a food."""
        return Count(n, noun, words.FOODS[noun])


@dataclass(frozen=True)
class Plot:
    """The templates that a plot function returns."""

    titles: tuple[str, ...]
    middle: str
    morals: tuple[str, ...]


RULES: dict[str, tuple[str, ...]] = {
    "once": ("once upon a time", "long ago", "once", "many years ago", "not so long ago", "in a quiet land far away"),
    "oneday": (
        "one day", "one (sunny|rainy|windy|cold|warm|quiet) (morning|day|afternoon)", "early one morning",
        "one (spring|summer|autumn|winter) (morning|day)", "on a (Monday|Tuesday|Friday|Sunday)", "when the first (snow|leaves) fell",
        "after breakfast", "the day after the (market|storm)", "one (morning|day), just after sunrise",
    ),
    "later": ("a little later", "after a while", "soon", "at noon", "when the sun was high", "then"),
    "begin": (
        "<once>, there (lived|was) {h.kind_a} (named|called) {h}. {h} (was {h.years} years old and|was only {h.years} years old and) lived {home.at}.",
        "{h} was {h.kind_a} who lived {home.at}. {h.he} was {h.years} years old.",
        "{home.at}, there lived {h.kind_a}. {h.his} name was {h}, and {h.he} was {h.years} years old.",
        "this is the story of {h}, {h.kind_a} who lived {home.at}. {h.he} had just turned {h.years}.",
    ),
    "trait": (
        "{h.he} was (very|really|always) {h.trait} and {habit}.",
        "everyone knew that {h} was {h.trait}. {h.he} {habit}.",
        "{h} {habit}, because {h.he} was (very|so) {h.trait}.",
    ),
    "friend": (
        "{h.his} best friend was {f.kind_a} (named|called) {f}.",
        "{h.he} had a good friend, {f.kind_a} (named|called) {f}.",
        "next door lived {f}, {f.kind_a}. {f.he} was {h}'s best friend.",
        "{h} and {f.kind_a} named {f} did everything together.",
    ),
    "wish": (
        "more than anything, {h} (wanted|wished for) {thing.a}.",
        "{h.he} had one (big|secret|great) wish: {thing.a}.",
        "every night, {h} dreamed of {thing.a}.",
        '"I wish I had {thing.a}," {h} (often said|said every day).',
    ),
    "intro": (
        "<begin> <trait> <friend> <wish>", "<begin> <friend> <wish>", "<begin> <wish> <friend>", "<begin> <trait> <wish> <friend>",
    ),
    "sad": ("{h} was sad", "{h} sat down and cried", "{h.he} felt very small", "a tear ran down {h.his} nose"),
    "glad": ("{h} was so happy that {h.he} danced", "{h} laughed with joy", "{h} smiled all day", "{h} jumped with joy"),
    "sky": (
        "the sun was shining and the birds were singing.", "it rained, so the path was full of puddles.",
        "the wind was strong, so {h} held on to {h.his} hat.", "it was so cold that {h.his} nose turned red.",
        "grey clouds came over the hill, but no rain fell.", "it was so hot that even the bees slept.",
    ),
    "detour": (
        "<sky>", "<sky>", "<snack>", "<advice>", "<tale>",
        "on the way, {h} met {e1_a}. (\"Good morning!\" said the {e1}.|\"Where are you going?\" asked the {e1}.) {h} (waved and went on|waved back and hurried on).",
    ),
    "snack": (
        "first they (sat down and ate {food_some}|shared {food_some}), because nobody can think with an empty belly.",
        "{h} had {food_some} in {h.his} pocket. {h.he} ate (it all|everything) and felt better.",
    ),
    "advice": (
        '(there sat|in the shade sat) {e2_a}. "<saying>" said the {e2}. {h} thought about it (for a long time|all the way home).',
        '"<saying>" {h.his} grandmother always said.',
    ),
    "saying": (
        "slow feet arrive as well,", "a friend is worth more than gold,", "look first and jump later,", "every big tree was once a seed,",
        "who asks will learn,", "after the rain comes the sun,", "small hands can do great things,",
    ),
    "tale": (
        '(there sat|by the road sat) {e2_a} who told {h} an old tale. "<fable>" {h} (smiled|laughed|nodded) and (thanked the {e2}|said thank you).',
    ),
    "fable": (
        "once, (a drop of rain|a snowflake|a small leaf) was afraid to fall. But it fell, and it met a thousand others just like it.",
        "once, (an ant|a beetle|a snail) wanted to be as big as a house. Then the winter came, and it was glad to fit under a leaf.",
        "once, (a star|a candle|a firefly) thought its light was too small. But a lost (sailor|child|lamb) saw it and found the way home.",
        "once, (a stone|a tree|a hill) asked (the wind|the river|a bird) to stay. It did not stay, but it came back every spring.",
        "once, (a crow|a cricket|a goose) told me a tale. <fable2>",
    ),
    "fable2": (
        "(the moon|the sun) lost a button in the sea, it said, and that is why the waves still shine.",
        "(two brooks|two clouds) quarrelled about the way, it said, until they met again in the sea.",
        "(a king|a queen) wanted to own the sky, it said, but it did not fit into any box.",
    ),
    "bye": (
        "(and they lived happily ever after|the end|and that is how it was|and if you listen, you can still hear them laugh).",
        "that night, {h} (slept very well|dreamed of the sea|slept like a stone).", "that night, {h} and {f} looked at the stars for a long time.",
    ),
    "granted": (
        "in the evening, {f} came with a (big|little|round) box. In it lay {thing.a}. {h}'s wish had come true!",
        "a week later, there was {thing.a} in front of the door. It came from {f}. <glad>.",
        "and the wish? On {h.his} birthday, {f} gave {h.him} {thing.a}. <glad>.",
        "{h} still had no {thing.noun}, but {h.he} had something better: a true friend.",
    ),
}  # fmt: skip


def lost(draw: Draw) -> Plot:
    """The wish came true, is lost, is searched for, and turns up for a reason that fits it."""
    kind, noun = draw.cast["thing_kind"], draw.cast["thing"].noun
    places = draw.rng.sample(words.HIDING, 3)
    draw.cast.update({f"in{i}": place for i, (place, _) in enumerate(places)})
    draw.cast.update({f"junk{i}": junk for i, (_, junk) in enumerate(places)})
    found = {
        "light": "the wind had carried it up into the old oak tree. {f} climbed up and brought it down.",
        "round": "it had rolled down the hill and into the (ditch|pond). {f} got it out with a long stick.",
        "heavy": "it stood (by the well|on the garden wall), where {h} had left it the day before. {f} pointed at it and laughed.",
    }[kind]  # fmt: skip
    if draw.rng.random() < 0.3:
        found = "a magpie had taken it to her nest, because it was so pretty. {f} asked her kindly, and she gave it back."
    middle = (
        f"(on {{h.his}} birthday|at last), {{h}} got it, and {{h.he}} took it everywhere. But <oneday>, the {noun} was gone! <sad>.\n\n"
        "{h.he} looked {in0}, but there was only {junk0}. {h.he} looked {in1}, but there was only {junk1}. "
        "(Even {in2} there was|{h.he} looked {in2} too, but there was) only {junk2}. "
        f'"(Have you seen my {noun}|Do you know where my {noun} is)?" {{h}} asked {{f}}. '
        f'"No, but (I will help you to look|two can look better than one|let us look together)," said {{f}}.\n\n'
        f"(They looked and looked|They followed the path {{far.to}}|They went all around the house). At last, they found the {noun}: {found} "
        "<glad>. "
    )
    titles = ("the lost {thing}", "{h} and the {thing}", "where is the {thing}?")
    morals = (
        "(a thing that has its place is not lost|who keeps order finds things faster)",
        "(two see more than one|four eyes see more than two)",
    )
    return Plot(titles, middle, morals)


def share(draw: Draw) -> Plot:
    """Counting: some things are given away, some come back."""
    rng, food = draw.rng, draw.rng.choice(list(words.FOODS))
    n, other = rng.randint(4, 12), rng.choice(words.HELPERS)
    given = rng.randint(1, n - 2)
    back = rng.randint(1, 6)
    draw.cast.update(
        n=draw.count(n, food), given=draw.count(given, food), left=draw.count(n - given, food),
        back=draw.count(back, food), total=draw.count(n - given + back, food), other=other,
        foods=words.FOODS[food], poor=rng.choice(("hungry", "tired", "poor", "old")),
    )  # fmt: skip
    middle = (
        "<oneday>, {h} (picked|got|found) {n}. {h.he} put them into a basket and went {far.to}. <detour>\n\n"
        "(There|By the road|Under a tree), {h.he} met {f}, who (looked hungry|had eaten nothing all day|was very tired). "
        '"(Would you like some {foods}|Shall we share my {foods}|Do you want some of my {foods})?" asked {h}. '
        '"(Oh yes, please|Yes, thank you|I would love that)!" said {f}. '
        "So {h} gave {f} {given}. Now {h.he} had {left} left.\n\n"
        '"How many {foods} do you have now?" asked {f}. {h} counted. "I have {left.word}," {h.he} said. '
        '{f} thought for a moment and ran home. {f.he} came back with {back}. "These are for you," said {f}. '
        "Now {h} had {total}. (That was plenty for both of them|They sat in the grass and ate until the sun went down). "
    )
    titles = ("{h} and the {foods}", "the basket of {foods}", "{n}")
    morals = ("(who shares has more|sharing makes everything taste better|what you give comes back to you)",)
    return Plot(titles, middle, morals)


def build(draw: Draw) -> Plot:
    """The hero builds something, it fails for a reason, and the hero builds it better."""
    what, parts, ruin, better, use = draw.rng.choice(words.PROJECTS)
    draw.cast.update(what=what, p0=parts[0], p1=parts[1], p2=parts[2], ruin=ruin, better=better, use=use)
    middle = (
        f'<oneday>, {{h}} had an idea. "(Let us|We could|I want to) build {with_article(what)}!" {{h.he}} said. '
        '"(What do we need|How do we do that)?" asked {f}. "We need {p0}, {p1} and {p2}," said {h}.\n\n'
        "On the first day, they looked for {p0}. On the second day, they found {p1} and {p2}. On the third day, they (worked|hammered|built) "
        "until it was dark. (At last|In the end), the {what} was ready. But <later>, {ruin}. "
        '<sad>. "(It was all for nothing|It will never work|I give up)!" said {h}.\n\n'
        '"(No, it was not|Let us try again|We only have to find out why)," said {f}. <detour> So they started again. This time, they {better}. '
        "And this time, it held! {h} and {f} {use} all (summer|week|afternoon). "
    )
    titles = ("the {what}", "{h} builds " + with_article(what), "the {what} of {h} and {f}")
    morals = ("(a mistake is a good teacher|who tries again will win|nobody builds it right the first time)",)
    return Plot(titles, middle, morals)


def rescue(draw: Draw) -> Plot:
    """A small animal is freed and returns the favour."""
    who, where, how, trouble, favour = draw.rng.choice(words.TRAPS)
    draw.cast.update(who=who, where=where, how=how, trouble=trouble, favour=favour)
    middle = (
        "<oneday>, {h} was on {h.his} way {far.to}. <detour> Suddenly, {h.he} heard a (small|thin|sad) voice. "
        f'"(Help|Help me|Please help me)!" it (cried|called). It was {with_article(who)}. It was stuck {where}.\n\n'
        '"(Do not be afraid|Wait, I will help you|Hold still)," said {h}. {h.he} {how}. The {who} was free! '
        '"(Thank you|I will never forget this)," said the {who}. "(One day I will help you too|I am small, but I will help you one day)." '
        "{h} (laughed|smiled), for how could a {who} help {h.him}?\n\n"
        "But (a week|a month|a few days) later, {h} and {f} were in trouble. {h} {trouble}. "
        'Then the {who} came! "(Now it is my turn|Here I am)," it said, and it {favour}. "(What a good friend|How clever you are)!" said {f}. '
    )
    titles = ("{h} and the {who}", "the grateful {who}", "help for " + with_article(who))
    morals = ("(nobody is too small to help|a good deed is never lost|kindness comes back)",)
    return Plot(titles, middle, morals)


def fear(draw: Draw) -> Plot:
    """The hero fears something that turns out to be harmless."""
    what, shape, cause, act = draw.rng.choice(words.FEARS)
    draw.cast.update(what=what, shape=shape, cause=cause, act=act)
    middle = (
        "But {h} was afraid of {what}. (Nobody knew it|Only {f} knew it|{h.he} told nobody but {f}). "
        "<oneday>, {f} did not come home. (It was getting late|The sun was going down). "
        '"(I have to look for {f.him}|{f} needs me)," said {h}, and {h.he} went {far.to} all alone.\n\n'
        "There, {shape}. {h.his} heart beat (fast|like a drum), and {h.his} knees (shook|felt like jelly). {h} wanted to run away. But {h.he} thought of {f} and {act}. "
        "And what was it? {cause}! {h} laughed (out loud|at {h.himself}).\n\n"
        'A little farther on sat {f}. "(I hurt my foot|I lost my way)," {f.he} said. "(How good that you came|Were you not afraid)?" '
        '"(A little|Yes, I was)," said {h}, "but (you are my friend|a friend is more than fear)." Together, they went home. '
    )
    titles = ("{h} is not afraid", "{h} and {what}", "a brave {h.kind}")
    morals = (
        "(who looks closely fears less|brave is who goes on with shaking knees|most ghosts are only sheets)",
    )
    return Plot(titles, middle, morals)


def quarrel(draw: Draw) -> Plot:
    """Two want the same thing."""
    item = draw.cast["thing"].noun
    draw.cast["item"] = item
    middle = (
        "<oneday>, {h} and {f} (found|saw) {thing.a} {far.at}. "
        '"(It is mine|I saw it first|That is what I always wanted)!" cried {h}. "(No, it is mine|No, I was here first|I want it too)!" cried {f}. '
        "{h} pulled on one side, and {f} pulled on the other. (Crack|Snap|Bang)! Now the {item} was (broken|in two pieces), and (they both were silent|nobody said a word).\n\n"
        'The old {w} (had seen it all|looked down at them). "(Now nobody has it|Two halves make nobody happy)," said the {w}. "(What will you do|What now)?" '
        '{h} looked at {f}. "I am sorry," {h.he} said. "(I am sorry too|So am I)," said {f}. '
        "They took (some glue|a needle and thread|a little wire) and repaired the {item} together.\n\n"
        "From then on, it belonged to {h} on one day and to {f} on the next. (On Sundays|On holidays), they played with it together. "
    )
    titles = ("the quarrel", "{h}, {f} and the {thing}", "mine!")
    morals = (
        "(half a joy shared is a whole one|who pulls too hard breaks what both love|it is better to share than to win)",
    )
    return Plot(titles, middle, morals)


def race(draw: Draw) -> Plot:
    """A boast, a race, and a reason for losing it."""
    why = draw.rng.choice((
        ("stopped to pick flowers", "never stopped at all"), ("lay down for a short nap", "went on step by step"),
        ("ran the wrong way, because nobody dared to tell {h.him}", "asked the {w} for the way"),
        ("turned around to laugh and fell into a puddle", "looked only at the path"),
        ("ate so much cake before the race that {h.he} could hardly run", "ate only {food_some}"),
    ))  # fmt: skip
    middle = (
        f'"I am (the fastest {{h.kind}} of all|faster than anyone {{home.at}}|as fast as the wind)!" {{h}} (said|boasted) every day. <oneday>, {{f}} had heard enough. "Then let us run a race {{far.to}}," said {{f}}. '
        'The old {w} (counted|called): "One, two, three, go!"\n\n'
        f"{{h}} ran (so fast that the dust flew|like an arrow), and soon {{f}} was far behind. <detour> But then {{h}} {why[0]}. "
        f"{{f}} was not so fast, but {{f.he}} {why[1]}. (Who came first|Who won)? It was {{f}}!\n\n"
        '"(That is not fair|How can that be)?" cried {h}. "(You are faster, but I was not so sure of myself|You were fast, but I was steady)," said {f}. '
        "{h} (was silent|turned red) for a moment. Then {h.he} (laughed|smiled) and shook {f}'s hand. "
    )
    titles = ("the race", "the great race", "{h} runs a race")
    morals = ("(pride comes before a fall|slow and steady wins the day|it is not over until it is over)",)
    return Plot(titles, middle, morals)


def cook(draw: Draw) -> Plot:
    """A recipe with a list, a missing part, a neighbour."""
    rng = draw.rng
    dish, foods, measures = rng.choice(words.DISHES)
    amounts = [draw.count(rng.randint(2, 9), food) for food in foods]
    measure, m = rng.choice(measures), rng.randint(2, 6)
    missing = rng.choice(amounts)
    have = rng.randint(1, missing.n - 1)
    lines = "\n".join(f"- {count.n} {count.many}" for count in amounts)
    short = draw.count(missing.n - have, missing.one)
    draw.cast.update(dish=dish, lines=f"{lines}\n- {m} {measure}", missing=missing, have=draw.count(have, missing.one),
                     short=short, foods=missing.many)  # fmt: skip
    middle = (
        f"<oneday>, {{h}} wanted to make {with_article(dish)} for {{f}}. {{h.he}} (opened the old book|looked into grandmother's book) and read:\n{{lines}}\n\n"
        "{h} looked into the kitchen. There were only {have}, but {h.he} needed {missing.word}. "
        '"(So I need {short.word} more|Then {short.word} more will do)," {h.he} said and went to the old {w}. '
        '"Can you give me {short}?" asked {h}. "(Of course|Gladly|Yes)," said the {w}, "if I may have a (piece|spoonful) of your {dish}."\n\n'
        "So {h} put everything into a big bowl, (stirred it well|mixed it with a wooden spoon) and waited. The whole house smelled (wonderful|good|sweet). "
        "When {f} came, there were three (plates|bowls) on the table: one for {h}, one for {f} and one for the {w}. "
        '"This is the best {dish} (in the world|I ever ate)!" said {f}. '
    )
    titles = (f"the {dish}", "{h} can cook", f"{with_article(dish)} for three")
    morals = (
        "(food tastes best with friends|who asks for help gets help|a table is never too small for one more)",
    )
    return Plot(titles, middle, morals)


def riddle(draw: Draw) -> Plot:
    """Somebody guards the way with riddles."""
    (question0, answer0), (question1, answer1) = draw.rng.sample(words.RIDDLES, 2)
    draw.cast.update(q0=question0, a0=answer0, q1=question1, a1=answer1)
    middle = (
        "<oneday>, {h} and {f} wanted to go {far.to}. But on the path sat (an|the) old {w} and did not let them pass. "
        '"(Only those who solve my riddles may pass|First you must solve two riddles)," said the {w}. "{q0}"\n\n'
        '{h} thought (hard|for a while|about it). "(Could it be|Is it) {a1}?" {h.he} asked. "(No, think again|Wrong|No, no)!" said the {w}. '
        '(Then {f} whispered something|Then {h} looked around), and {h} called: "It is {a0}!" '
        '"(Right|Very good)," said the {w}. "Now the second one. {q1}"\n\n'
        'This time, {f} was faster. "{a1}!" {f.he} (cried|called). The {w} (laughed|nodded) and let them pass. '
        "(And what was behind it|And what did they find there)? A meadow full of {foods}, as many as they could eat. "
    )
    titles = ("two riddles", "the riddles of the {w}", "{h} and the old {w}")
    morals = (
        "(two heads are better than one|thinking opens every door|a wrong answer is a step to the right one)",
    )
    draw.cast["foods"] = words.FOODS[draw.rng.choice(("berry", "cherry", "plum", "apple"))]
    return Plot(titles, middle, morals)


def seed(draw: Draw) -> Plot:
    """Patience: something grows."""
    what, result = draw.rng.choice(words.SEEDS)
    days = draw.rng.randint(3, 9)
    draw.cast.update(
        what=what, result=result, days=words.NUMBERS[days], more=words.NUMBERS[days + draw.rng.randint(1, 8)]
    )
    middle = (
        f'<oneday>, the old {{w}} gave {{h}} {with_article(what)}. "(Put it into the earth|Plant it in the garden), water it and wait," said the {{w}}. '
        "{h} planted it at once. {h.he} watered it in the morning, and {h.he} watered it in the evening.\n\n"
        "After one day, nothing had happened. After two days, nothing had happened. After {days} days, there was still only (brown|black|wet) earth. "
        '"(It does not work|Perhaps it is dead|I will dig it up)!" said {h}. "(Wait a little|Give it time|Not yet)," said {f}. '
        '"(Good things are slow|It works where you cannot see it)." ^<detour> So {h} waited.\n\n'
        "After {more} days, (there was a tiny green tip|something green looked out of the earth)! It grew and grew. "
        "In the end, it was {result}. <glad>. {f} was proud too. "
    )
    titles = ("the {what}", "{h} and the {what}", "{h} waits")
    morals = ("(good things take time|who waits will see it grow|patience is also a kind of work)",)
    return Plot(titles, middle, morals)


def trade(draw: Draw) -> Plot:
    """A chain of trades: everyone wants something first; then it all unwinds. Nested as deep as the chain."""
    owners = draw.rng.sample(words.OWNERS, draw.rng.randint(2, 4))
    gift = draw.rng.choice(words.FREE_GIFTS)
    there, wanted = [], "the {thing.noun}"
    for (owner, _), (_, price) in zip(owners, [*owners[1:], ("", gift)], strict=True):
        ask = f'"(May I have|Could I have|Can I have) {wanted}?" {{h.he}} asked. '
        answer = "(Yes, but first bring me|Yes, for)" if price != gift else "(Yes, but only for|Yes, for)"
        there.append(f'{{h}} (went|walked|ran) to the {owner}. {ask}"{answer} {price}," said the {owner}. ')
        wanted = price
    back = [f"So {{h}} gave the {owners[-1][0]} {gift} and got {owners[-1][1]}. "]
    for (owner, good), (_, price) in reversed(list(pairwise(owners))):
        got = "the {thing.noun}" if owner == owners[0][0] else good
        back.append(f"{{h.he}} gave the {owner} {definite(price)} and got {got}. ")
    first = owners[0][0]
    middle = (
        f'<oneday>, {{f}} came running. "The {first} {{far.at}} has {{thing.a}}!" {{f.he}} cried. {"".join(there)}\n\n{"".join(back)}\n\n'
        '"(You did it|At last|That was a long way for one {thing.noun})!" said {f}. <glad>. '
    )
    titles = ("{h} and the {thing}", "the long way to the {thing}", f"the {first} and the {{thing}}")
    morals = (
        "(step by step you reach the goal|everyone needs something|a long way begins with a small gift)",
    )
    return Plot(titles, middle, morals)


def honest(draw: Draw) -> Plot:
    """Something breaks; the truth comes out."""
    what, how = draw.rng.choice(words.MISHAPS)
    draw.cast.update(what=what, how=how)
    middle = (
        "<oneday>, {h} and {f} were playing at the house of the old {w}. They (jumped and ran|laughed and shouted). "
        "Then it happened: {how}, and the {what} of the old {w} was broken. (Nobody had seen it|The {w} was not at home).\n\n"
        '"(Let us run away|We could hide|We could say it was the cat)," {h} whispered. {f} (shook {f.his} head|said nothing). '
        "All evening, {h} had a (heavy|bad) feeling in {h.his} belly. {h.he} could not eat, and {h.he} could not sleep. "
        'In the morning, {h} went to the {w}. "(It was me|I did it)," {h.he} said. "I broke your {what}, and I am sorry."\n\n'
        'The {w} looked at {h.him} for a long time. "(That was brave|Thank you for the truth)," said the {w}. "(A {what} can be repaired, but trust cannot|Come, we will repair it together)." '
        "So {h}, {f} and the {w} worked until noon, and (then it was as good as new|then there was cake for everyone). "
    )
    titles = ("the broken {what}", "{h} tells the truth", "who broke the {what}?")
    morals = (
        "(the truth makes the heart light|a lie is heavier than a stone|it is brave to say I am sorry)",
    )
    return Plot(titles, middle, morals)


PLOTS: tuple[Callable[[Draw], Plot], ...] = (
    lost, share, build, rescue, fear, quarrel, race, cook, riddle, seed, trade, honest,
)  # fmt: skip

WISH_IN_PLOT = frozenset({lost, quarrel, trade})
"""Plots whose object is the wish itself: no further gift at the end."""
