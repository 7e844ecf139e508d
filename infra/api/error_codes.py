"""What each error code means and what to do about it: the text behind `type` in every problem of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Meaning:
    """One code in a person's words. Codes never change and are never used for something else."""

    title: str
    means: str
    way_out: str


WHO: Final = {
    "not-signed-in": Meaning(
        "Nobody is signed in",
        "The request says nothing, or nothing valid, about who makes it.",
        "Send `Authorization: Bearer` with a token. Make one under Tokens in the portal, or with `manage.py token`.",
    ),
    "token-unknown": Meaning(
        "The token is not known",
        "No token like this was ever made here, or it was copied only in part.",
        "Check that it is whole and meant for this portal, or make a new one under Tokens.",
    ),
    "token-expired": Meaning(
        "The token has expired",
        "Every token lives a bounded time, and this one's is over.",
        "Make a new one under Tokens, and give it to whatever used the old one.",
    ),
    "token-revoked": Meaning(
        "The token was revoked",
        "Its owner or an admin took it back; that cannot be undone.",
        "Make a new one under Tokens. If you did not revoke it, ask an admin who did.",
    ),
    "account-disabled": Meaning(
        "The account is disabled",
        "The token is good, but the account it belongs to may not be used.",
        "Ask an admin of this site.",
    ),
    "sign-in-failed": Meaning(
        "Name or password is wrong",
        "Which of the two is not said, so that nobody can try out names.",
        "Check both, or ask an admin for a new password.",
    ),
    "locked-out": Meaning(
        "Too many failed attempts",
        "There were many wrong passwords for this name, or from this address: the next try is looked at only after a "
        "wait, which grows with each wrong password, to 15 minutes at most.",
        "Wait as long as the answer says. Wrong passwords that others give for your name delay you by a minute at "
        "most, and not at all in a browser or at an address with which you have signed in before.",
    ),
    "demo-elsewhere": Meaning(
        "A demo account from another machine",
        "Demo accounts have known passwords, so they sign in only from the machine that Muster runs on.",
        "Open the portal there, at a 127.0.0.1 address, or use an account of your own.",
    ),
    "not-allowed": Meaning(
        "You may not do this",
        "You may see the thing, but your role does not allow this. The attempt is in the audit trail.",
        "Ask a lead of the project or an operator to do it, or to give you the role.",
    ),
    "scope-missing": Meaning(
        "The token may not do this",
        "You may, but the token you use was made with fewer scopes than this needs.",
        "Use a token with the scope that the message names.",
    ),
    "token-escalation": Meaning(
        "A token cannot give more than it has",
        "A token was to make another with more scopes, or for another project, than its own.",
        "Leave out what it does not have, or make the token while signed in to the portal.",
    ),
    "role-too-low": Meaning(
        "Your role in the project is too low",
        "You may see the project, but not submit jobs for it.",
        "Ask a lead of the project for another role.",
    ),
    "bad-join-token": Meaning(
        "The join token is not valid",
        "A node wanted to join with a token that is unknown or used up.",
        "Make a new one in the admin pages, and start the agent with it.",
    ),
    "bad-agent-key": Meaning(
        "The agent's key is not valid",
        "An agent called with a key that belongs to no node, or to a removed one.",
        "Let the node join again with a new join token.",
    ),
}

THERE: Final = {
    "not-found": Meaning(
        "There is nothing here",
        "No such thing exists, or you may not see it: the two look alike on purpose.",
        "Check the number or name. The documentation of the API says what there is.",
    ),
    "method-not-allowed": Meaning(
        "Not with this method",
        "The address exists, but does not take this HTTP method.",
        "The `Allow` header names those it takes.",
    ),
    "conflict": Meaning(
        "It is no longer so",
        "The thing is in a state in which this cannot be done.",
        "Look at it again, and decide anew.",
    ),
    "stale": Meaning(
        "Somebody was faster",
        "It was changed after you looked at it; nothing of yours was written.",
        "Read it again, and send your change with the new version (`If-Match`).",
    ),
    "there-already": Meaning(
        "This is there already",
        "The same thing, or one that says the same, exists; it was not made twice.",
        "Look for it, and change that one.",
    ),
    "asked-already": Meaning(
        "This was asked already",
        "The same request is still waiting for an answer.",
        "Wait for the answer, or withdraw the first request.",
    ),
    "decided-already": Meaning(
        "This was decided already",
        "Somebody has approved, refused or withdrawn the request meanwhile.",
        "Read what was decided; ask anew if you need something else.",
    ),
    "already-reserved": Meaning(
        "It is booked already",
        "Another reservation has these nodes or devices in that time.",
        "Choose another time or other nodes.",
    ),
    "not-enough-free": Meaning(
        "Not enough is free then",
        "The cluster has no room for such a reservation in that time.",
        "Ask for less, or for another time.",
    ),
    "node-is-alive": Meaning(
        "The node is alive",
        "A node with this name still reports, so another cannot take its place.",
        "Stop the old agent first, or give the new node another name.",
    ),
    "idempotency-in-progress": Meaning(
        "The first of two equal requests is still at work",
        "Another request with the same Idempotency-Key has not ended yet.",
        "Wait a moment and send it again: you then get the answer of the first.",
    ),
    "idempotency-key-reused": Meaning(
        "The key was used for something else",
        "The same Idempotency-Key came with another body before.",
        "Use a new key for each new request, and the same only to repeat one.",
    ),
    "rights-changed": Meaning(
        "Your rights are less than when this was done",
        "The request was done once. Its answer is given again only to a sign-in that may at least as much as the "
        "first: the same roles, the same scopes, and no token that is held to another project.",
        "Look at what it made with a sign-in that may see it. Do not send it with a new key: it would be done twice.",
    ),
}

LIMITS: Final = {
    "too-many": Meaning(
        "Too many",
        "A limit on how many there may be was met.",
        "Send fewer at once, or wait until some are done.",
    ),
    "too-many-requests": Meaning(
        "Too many requests",
        "You ask faster than this portal answers one caller.",
        "Wait as long as `Retry-After` says, and ask for many things in one request.",
    ),
    "too-many-pending": Meaning(
        "Too many jobs are waiting",
        "A limit says how many jobs may wait at once, and it is met.",
        "Submit more when some have started, or ask for a higher limit.",
    ),
    "queue-full": Meaning(
        "The queue is full",
        "The queue takes only so many waiting jobs.",
        "Submit later, or to another queue.",
    ),
    "quota-exceeded": Meaning(
        "A quota would be passed",
        "There is not enough left under the limit for this.",
        "Ask for less, wait until something ends, or ask for a higher limit on the Quota page.",
    ),
    "exceeds-quota": Meaning(
        "More than the quota will ever allow",
        "The job asks for more than the hard limit, so it could never start.",
        "Ask for less, or have the limit raised first.",
    ),
    "exceeds-wall-time": Meaning(
        "Longer than the queue allows",
        "The time limit is above the longest that jobs of this queue may run.",
        "Shorten it, or choose a queue for longer jobs.",
    ),
    "can-never-fit": Meaning(
        "It can never fit",
        "No node, and no group of nodes, is large enough for this, even when all is free.",
        "The message names the largest there is: ask for at most that.",
    ),
    "above-priority-ceiling": Meaning(
        "A priority above your ceiling",
        "Your role may give jobs only so high a priority.",
        "Use a lower one, or ask a lead or an operator.",
    ),
    "project-not-usable": Meaning(
        "You cannot use this project",
        "There is no such project for you, or it is closed, or your role is too low.",
        "Choose one of your own projects, or ask its lead.",
    ),
    "queue-not-usable": Meaning(
        "You cannot use this queue",
        "The queue is closed to your project, or there is none of this name.",
        "Choose another queue, or ask an operator.",
    ),
    "body-too-large": Meaning(
        "The body is too large",
        "The request is larger than what is read at once.",
        "Send less at once: put data into files, and jobs into several requests.",
    ),
    "too-many-rows": Meaning(
        "The request makes too many rows",
        "Its parts multiplied make more than one request may: jobs of arrays, what they wait for, or lines of a file.",
        "Send it in several requests, each within the limit that the message names.",
    ),
    "caller-gone": Meaning(
        "The caller has hung up",
        "The connection ended before the answer was ready, so the work was stopped. Nothing was written.",
        "Send the request again, with the same Idempotency-Key.",
    ),
    "too-large": Meaning(
        "Too large",
        "A value, or what an agent sent, is larger than what is taken.",
        "Send less; the message names the most.",
    ),
}

INPUT: Final = {
    "invalid": Meaning(
        "Something in the request is wrong",
        "One or more fields cannot be taken; nothing was written.",
        "`errors` names each field with what is wrong. Correct them all and send it again.",
    ),
    "bad-request": Meaning(
        "The request cannot be read",
        "It is not a request that a web server understands.",
        "Check how it is made; the documentation of the API shows each one.",
    ),
    "malformed-json": Meaning(
        "This is no JSON",
        "The body cannot be read as JSON in UTF-8, or is nested too deep.",
        "Send one JSON object. A number must be finite, and text without NUL characters.",
    ),
    "not-json": Meaning(
        "This is no JSON",
        "What an agent sent cannot be read as JSON.",
        "Check that agent and portal are of the same version.",
    ),
    "not-an-object": Meaning(
        "An object is wanted",
        "The body, or a field, has to be an object with names and values.",
        "Send `{...}` instead of a list, a number or text.",
    ),
    "not-a-list": Meaning(
        "A list is wanted", "The field takes several values.", "Send `[...]`, even for one."
    ),
    "not-text": Meaning("Text is wanted", "The field takes text only.", "Put the value into quotes."),
    "not-a-number": Meaning(
        "A number is wanted", "The field takes a number only.", "Send it without quotes and units."
    ),
    "not-a-flag": Meaning(
        "Yes or no is wanted", "The field is `true` or `false`.", "Send one of the two, without quotes."
    ),
    "bad-text": Meaning(
        "Text that cannot be kept",
        "It is too long, or has characters that are none, such as NUL.",
        "Shorten it, and leave those out.",
    ),
    "too-long": Meaning(
        "Too long", "The text is longer than the field takes.", "Shorten it to what the message says."
    ),
    "bad-name": Meaning(
        "Not a name",
        "Names are made of certain characters only.",
        "Use what the message names: mostly letters, digits, `-`, `_` and `.`.",
    ),
    "reserved": Meaning(
        "This name is taken by Muster",
        "The name belongs to what Muster itself sets for a job.",
        "Choose another.",
    ),
    "not-absolute": Meaning("The path is not absolute", "It has to begin at the root.", "Begin it with `/`."),
    "out-of-range": Meaning(
        "Too small or too large",
        "The number is outside what is allowed.",
        "The message names the least and the most.",
    ),
    "in-the-past": Meaning(
        "It is over already",
        "The moment has to be in the future.",
        "Choose a later one, and name its time zone.",
    ),
    "unreadable": Meaning(
        "The value cannot be read",
        "It is not written in a way that Muster knows for this field.",
        "The message shows an example.",
    ),
    "required": Meaning("This is missing", "The field has to be there and not empty.", "Give it a value."),
    "unknown-field": Meaning(
        "There is no such field",
        "A field of this name does not exist; it is refused rather than overlooked.",
        "The message names the one that is likely meant.",
    ),
    "unknown-choice": Meaning(
        "Not one of the choices", "The field takes only certain values.", "The message names them."
    ),
    "unknown": Meaning(
        "Not known", "A name in the request stands for nothing that exists here.", "Check its spelling."
    ),
    "unknown-filter": Meaning(
        "There is no such filter",
        "The list cannot be narrowed by this.",
        "The message names what it can be narrowed by.",
    ),
    "bad-filter": Meaning(
        "The filter cannot be read", "Its value is not of the kind it takes.", "The message says which."
    ),
    "one-of": Meaning(
        "One of these, not several",
        "Exactly one of some fields has to be given.",
        "Keep one of those that the message names.",
    ),
    "inconsistent": Meaning(
        "Two fields contradict each other",
        "Each is fine by itself, but together they cannot hold.",
        "Change one of those that the message names.",
    ),
    "repeated": Meaning(
        "Given more than once", "The same thing is there several times.", "Leave it in once."
    ),
    "twice": Meaning("Named twice", "The same thing is named in two places.", "Leave it in once."),
    "circle": Meaning(
        "They wait for each other",
        "Each would wait for another, and the last for the first.",
        "Take out one of the links.",
    ),
    "not-a-job": Meaning(
        "This is no job", "The field takes numbers of jobs.", "Use numbers of jobs that you may see."
    ),
    "never-satisfied": Meaning(
        "What it waits for can no longer come",
        "The other job has already ended in another way.",
        "Leave it out, or wait for a different end.",
    ),
    "no-shebang": Meaning(
        "A script says by its first line what runs it",
        "The first line does not begin with `#!`.",
        "Begin the script with `#!/bin/bash`, for example.",
    ),
    "bad-script": Meaning(
        "The batch script cannot be read",
        "Something in its `#SBATCH` lines is unknown or wrong.",
        "`errors` names each line.",
    ),
    "bad-if-match": Meaning(
        "The version cannot be read",
        "`If-Match` takes the version that was read before.",
        "Send the `ETag` of your last read as it is.",
    ),
    "idempotency-key-bad": Meaning(
        "The Idempotency-Key cannot be used",
        "It is empty, too long, or has characters that a header cannot hold.",
        "Use up to 200 letters and digits, for example a UUID.",
    ),
    "not-acceptable": Meaning(
        "Not in this form", "The API answers in JSON only.", "Send `Accept: application/json`."
    ),
    "unsupported-media-type": Meaning(
        "Not a type that is read", "The API reads JSON only.", "Send `Content-Type: application/json`."
    ),
}

SERVER: Final = {
    "internal-error": Meaning(
        "Something went wrong here",
        "It is not your fault, and it has been written down.",
        "Try again. If it happens again, give an operator the `request_id`.",
    ),
    "unavailable": Meaning(
        "Not at the moment",
        "Something that Muster needs, mostly its database, does not answer.",
        "Try again in a few seconds, with the same Idempotency-Key.",
    ),
    "took-too-long": Meaning(
        "It took too long",
        "The database was stopped in the middle, because one request may take it only so long. Nothing was written.",
        "Ask for less: fewer rows, a shorter time, more filters. An operator can change `MUSTER_DB_STATEMENT_SECONDS`.",
    ),
    "busy": Meaning(
        "Somebody else is changing it",
        "The request waited for a row that another one holds, and gave up. Nothing was written.",
        "Try again in a few seconds, with the same Idempotency-Key.",
    ),
    "disk-full": Meaning(
        "The disk is full",
        "The portal or its database cannot store anything at the moment. Nothing of the request was written.",
        "An operator has to make room; `/readyz?verbose` says where. Then try again, with the same Idempotency-Key.",
    ),
    "provider-unavailable": Meaning(
        "The quota provider cannot be used",
        "What the provider needs is not installed or not configured.",
        "An operator finds what is missing in the message.",
    ),
    "provider-unreachable": Meaning(
        "The quota provider does not answer",
        "The limits are kept here, and wait to be brought over.",
        "Nothing is lost. Try again when it answers.",
    ),
    "provider-refused": Meaning(
        "The quota provider refuses",
        "It answered, and did not take what it was given.",
        "The message says why; an operator puts its rights or settings in order.",
    ),
    "provider-off": Meaning(
        "The quota provider is switched off",
        "The portal is set up not to write to it.",
        "An operator can switch it on.",
    ),
    "kept-here": Meaning(
        "Muster itself keeps this quota",
        "There is no provider outside that could differ.",
        "Nothing has to be done.",
    ),
    "error": Meaning(
        "It was refused",
        "The message says why.",
        "Do what it says, or show it to an operator.",
    ),
}

#: In the order in which they are shown.
GROUPS: Final = (
    ("Who you are and what you may", WHO),
    ("What is there", THERE),
    ("Limits", LIMITS),
    ("What you sent", INPUT),
    ("On our side", SERVER),
)
MEANINGS: Final[dict[str, Meaning]] = {
    code: meaning for _, group in GROUPS for code, meaning in group.items()
}

#: For answers that Django itself made, without a code of ours.
CODE_OF_STATUS: Final = {
    400: "bad-request",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "unsupported-media-type",
    429: "too-many-requests",
    500: "internal-error",
    503: "unavailable",
}
