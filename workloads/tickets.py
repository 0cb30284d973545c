"""Generates labeled support tickets from a seed.

They are hard enough that no classifier gets all of them right: some are mislabeled, some say
nothing that tells their class, some mention a request of another class as settled, and some words
are misspelled.
"""

from __future__ import annotations

import random


def _lines(text: str) -> tuple[str, ...]:
    """Return the lines of a text that is written one to a line."""
    return tuple(text.strip().splitlines())


# The request of a ticket, by class. The vocabulary of the classes overlaps on purpose: cards,
# invoices, logins and plans occur in every class.
REQUESTS = {
    "billing": _lines("""
i was charged {amount} twice for {month}
the invoice for {month} shows the wrong amount
please refund the {amount} taken from my card
my card was declined although it is valid until next year
the discount code is missing from my {product} invoice
why did the price of the {plan} plan go up to {amount}
i need a receipt with our tax number for {month}
the payment is still pending after {number} days
you billed the {plan} plan but we cancelled in {month}
can we pay for the {product} by bank transfer and not by card
"""),
    "technical": _lines("""
the {product} crashes when i open an invoice on my {device}
the login page stays blank on my {device}
i see error {number} each time i save
the payment form does not load in my browser
syncing my {device} with the {product} stopped in {month}
the export of {number} rows never finishes
after the update the {product} is very slow on my {device}
the app freezes as soon as i change a setting of my profile
no notification reaches my {device} any more
the {plan} plan lists search but the button does nothing
"""),
    "account": _lines("""
i cannot log in since i changed my email
please close my account and delete my data
the reset link for my password has expired
add {number} members of my team to the {plan} plan
i want to move my profile from the {product} to another address
my account is locked after {number} attempts on my {device}
change the owner of our account before the invoice of {month}
how do i turn on two factor login on my {device}
the name on my profile and on my card differ, please update it
somebody else signed in to my account in {month}
"""),
}
# The empty string stands for no opening.
OPENINGS = (
    *_lines("""
hello
hi there
good morning
dear team
to whom it may concern
hey
urgent
"""),
    "",
)
# Sentences that mention a request of another class, which is not what the ticket is about.
SETTLED = _lines("""
last week i wrote that {other} and that is settled
unlike my friend who says that {other}
this is not the old matter that {other}
your colleague already solved that {other}
""")
# Sentences that fit every class.
VAGUE = _lines("""
it worked fine until {month}
i use the {product} on my {device} every day
we have been on the {plan} plan for {number} months
i tried it {number} times and still have the problem
something is wrong with my {product} and nobody answers
the help page of the {product} did not help
""")
CLOSINGS = (
    *_lines("""
thanks
please advise
regards
can you fix this today
waiting for your answer
"""),
    "",
)
# What the placeholders in the sentences are filled with.
SLOTS = {
    "amount": ("19 euro", "49 euro", "120 dollars", "8 dollars"),
    "month": ("january", "march", "june", "october", "december"),
    "product": ("app", "dashboard", "cloud storage", "editor", "web shop"),
    "plan": ("free", "basic", "team", "business"),
    "device": ("phone", "tablet", "laptop", "desktop", "work computer"),
    "number": ("2", "3", "12", "40", "502"),
}
MISLABELED_SHARE = 0.04  # of tickets: labeled as another class by mistake
UNCLEAR_SHARE = 0.06  # of tickets: say nothing that tells their class
SETTLED_SHARE = 0.25  # of tickets: mention a request of another class, as settled
EXTRA_VAGUE_SHARE = 0.5  # of tickets: have one more vague sentence
TYPO_SHARE = 0.03  # of words of at least MIN_TYPO_LENGTH letters: two letters are swapped
MIN_TYPO_LENGTH = 4


def tickets(rows: int, seed: int) -> list[tuple[str, str]]:
    """Return `rows` tickets as (text, label), the three classes in equal parts and shuffled.

    The tickets follow from the arguments alone. Every draw below is part of that: adding, removing
    or reordering one changes all tickets after it.
    """
    rng = random.Random(seed)
    classes = sorted(REQUESTS)
    labels = [classes[i % len(classes)] for i in range(rows)]
    rng.shuffle(labels)
    generated = []
    for label in labels:
        topic = label
        if rng.random() < MISLABELED_SHARE:
            topic = _other_class(rng, label)
        generated.append((_ticket_text(rng, topic), label))
    return generated


def _other_class(rng: random.Random, topic: str) -> str:
    """Return a random class other than `topic`."""
    others = [other for other in sorted(REQUESTS) if other != topic]
    return rng.choice(others)


def _ticket_text(rng: random.Random, topic: str) -> str:
    """Return the text of a ticket about `topic`."""
    kind = rng.random()
    is_unclear = kind < UNCLEAR_SHARE
    mentions_settled = UNCLEAR_SHARE <= kind < UNCLEAR_SHARE + SETTLED_SHARE
    sentences = [rng.choice(VAGUE if is_unclear else REQUESTS[topic])]
    if mentions_settled:
        other = _other_class(rng, topic)
        other_request = rng.choice(REQUESTS[other])
        settled = rng.choice(SETTLED)
        sentences.append(settled.replace("{other}", other_request))
    if rng.random() < EXTRA_VAGUE_SHARE:
        sentences.append(rng.choice(VAGUE))
    rng.shuffle(sentences)
    parts = [rng.choice(OPENINGS), *sentences, rng.choice(CLOSINGS)]
    text = ". ".join(part for part in parts if part)
    # A value is drawn for every placeholder, also for those that the text does not have.
    values = {slot: rng.choice(choices) for slot, choices in SLOTS.items()}
    filled = text.format(**values)
    return " ".join(_with_typo(rng, token) for token in filled.split())


def _with_typo(rng: random.Random, token: str) -> str:
    """Return the word with two adjacent letters swapped now and then, otherwise unchanged."""
    # Short words take no draw.
    if len(token) < MIN_TYPO_LENGTH or rng.random() >= TYPO_SHARE:
        return token
    at = rng.randrange(len(token) - 1)
    return token[:at] + token[at + 1] + token[at] + token[at + 2 :]
