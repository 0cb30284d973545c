"""A seeded generator of labelled support tickets, hard enough that no classifier gets them all right."""

from __future__ import annotations

import random

Row = tuple[str, str]

# What a ticket asks for. The words overlap on purpose: cards, invoices, logins and plans occur in every class.
REQUESTS = {
    "billing": (
        "i was charged {amount} twice for {month}",
        "the invoice for {month} shows the wrong amount",
        "please refund the {amount} taken from my card",
        "my card was declined although it is valid until next year",
        "the discount code is missing from my {product} invoice",
        "why did the price of the {plan} plan go up to {amount}",
        "i need a receipt with our tax number for {month}",
        "the payment is still pending after {number} days",
        "you billed the {plan} plan but we cancelled in {month}",
        "can we pay for the {product} by bank transfer and not by card",
    ),
    "technical": (
        "the {product} crashes when i open an invoice on my {device}",
        "the login page stays blank on my {device}",
        "i see error {number} each time i save",
        "the payment form does not load in my browser",
        "syncing my {device} with the {product} stopped in {month}",
        "the export of {number} rows never finishes",
        "after the update the {product} is very slow on my {device}",
        "the app freezes as soon as i change a setting of my profile",
        "no notification reaches my {device} any more",
        "the {plan} plan lists search but the button does nothing",
    ),
    "account": (
        "i cannot log in since i changed my email",
        "please close my account and delete my data",
        "the reset link for my password has expired",
        "add {number} members of my team to the {plan} plan",
        "i want to move my profile from the {product} to another address",
        "my account is locked after {number} attempts on my {device}",
        "change the owner of our account before the invoice of {month}",
        "how do i turn on two factor login on my {device}",
        "the name on my profile and on my card differ, please update it",
        "somebody else signed in to my account in {month}",
    ),
}
OPENINGS = (
    "hello",
    "hi there",
    "good morning",
    "dear team",
    "to whom it may concern",
    "hey",
    "urgent",
    "",
)
SETTLED = (
    "last week i wrote that {other} and that is settled",
    "unlike my friend who says that {other}",
    "this is not the old matter that {other}",
    "your colleague already solved that {other}",
)
VAGUE = (
    "it worked fine until {month}",
    "i use the {product} on my {device} every day",
    "we have been on the {plan} plan for {number} months",
    "i tried it {number} times and still have the problem",
    "something is wrong with my {product} and nobody answers",
    "the help page of the {product} did not help",
)
CLOSINGS = (
    "thanks",
    "please advise",
    "regards",
    "can you fix this today",
    "waiting for your answer",
    "",
)
SLOTS = {
    "amount": ("19 euro", "49 euro", "120 dollars", "8 dollars"),
    "month": ("january", "march", "june", "october", "december"),
    "product": ("app", "dashboard", "cloud storage", "editor", "web shop"),
    "plan": ("free", "basic", "team", "business"),
    "device": ("phone", "tablet", "laptop", "desktop", "work computer"),
    "number": ("2", "3", "12", "40", "502"),
}
MISFILED = 0.04  # labelled as another class by mistake
UNCLEAR = 0.06  # says nothing that tells its class
CROSSED = 0.25  # mentions a request of another class too, as settled
TYPO = 0.03  # words with two letters swapped


def tickets(rows: int, seed: int) -> list[Row]:
    """`rows` tickets as (text, label), the three classes in equal parts and shuffled."""
    rng = random.Random(seed)
    classes = sorted(REQUESTS)
    labels = [classes[i % len(classes)] for i in range(rows)]
    rng.shuffle(labels)
    return [(_ticket(rng, _drawn(rng, label)), label) for label in labels]


def _drawn(rng: random.Random, label: str) -> str:
    """What a ticket with that label is about: now and then it was misfiled."""
    return _another(rng, label) if rng.random() < MISFILED else label


def _another(rng: random.Random, topic: str) -> str:
    return rng.choice([other for other in sorted(REQUESTS) if other != topic])


def _ticket(rng: random.Random, topic: str) -> str:
    kind = rng.random()
    sentences = [rng.choice(VAGUE) if kind < UNCLEAR else rng.choice(REQUESTS[topic])]
    if UNCLEAR <= kind < UNCLEAR + CROSSED:
        other = rng.choice(REQUESTS[_another(rng, topic)])
        sentences.append(rng.choice(SETTLED).replace("{other}", other))
    if rng.random() < 0.5:
        sentences.append(rng.choice(VAGUE))
    rng.shuffle(sentences)
    text = ". ".join(
        part for part in (rng.choice(OPENINGS), *sentences, rng.choice(CLOSINGS)) if part
    )
    filled = text.format(**{slot: rng.choice(words) for slot, words in SLOTS.items()})
    return " ".join(_typed(rng, word) for word in filled.split())


def _typed(rng: random.Random, word: str) -> str:
    if len(word) < 4 or rng.random() >= TYPO:
        return word
    at = rng.randrange(len(word) - 1)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
