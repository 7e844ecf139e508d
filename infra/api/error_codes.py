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
        "Not signed in",
        "The request has no credentials, or none that are valid.",
        "Send `Authorization: Bearer` with a token. Create one under Tokens in the portal, or with `manage.py token`.",
    ),
    "token-unknown": Meaning(
        "Unknown token",
        "This portal never issued the token, or the token was copied only in part.",
        "Check that the token is complete and belongs to this portal, or create a new one under Tokens.",
    ),
    "token-expired": Meaning(
        "The token has expired",
        "Every token has an expiry date, and the date of this one has passed.",
        "Create a new token, and use it where the old one was used.",
    ),
    "token-revoked": Meaning(
        "The token was revoked",
        "The owner or an admin revoked the token; that cannot be undone.",
        "Create a new token. If you did not revoke the old one, ask an admin.",
    ),
    "account-disabled": Meaning(
        "The account is disabled",
        "The token is valid, but the account is disabled.",
        "Ask an admin of this site.",
    ),
    "sign-in-failed": Meaning(
        "Wrong username or password",
        "The answer does not say which of the two is wrong, so that usernames cannot be probed.",
        "Check both, or ask an admin for a new password.",
    ),
    "locked-out": Meaning(
        "Too many failed attempts",
        "Many wrong passwords were given for this username or from this address. The next attempt is accepted after a "
        "wait, which grows with each wrong password, to 15 minutes at most.",
        "Wait as long as the answer says. Wrong passwords that others give for your username delay you by a minute at "
        "most, and not at all in a browser or at an address with which you have signed in before.",
    ),
    "demo-elsewhere": Meaning(
        "A demo account from another machine",
        "Demo accounts have known passwords, so they sign in only from the machine that Muster runs on.",
        "Open the portal there, at a 127.0.0.1 address, or use an account of your own.",
    ),
    "not-allowed": Meaning(
        "Permission denied",
        "You can see the object, but your role does not allow this action. The attempt is in the audit trail.",
        "Ask a lead of the project or an operator to do this, or to give you the role.",
    ),
    "scope-missing": Meaning(
        "Token scope missing",
        "Your account may do this, but the token lacks a required scope.",
        "Use a token with the scope that the message names.",
    ),
    "token-escalation": Meaning(
        "A token cannot grant more than it has",
        "A token was used to create a token with more scopes or another project.",
        "Leave out the extra scopes, or create the token while signed in to the portal.",
    ),
    "role-too-low": Meaning(
        "Your role in the project is too low",
        "You may see the project, but not submit jobs for it.",
        "Ask a lead of the project for another role.",
    ),
    "bad-join-token": Meaning(
        "The join token is not valid",
        "A node tried to join with a token that is unknown or used up.",
        "Create a new join token in the admin pages, and start the agent with it.",
    ),
    "agent-too-old": Meaning(
        "The agent is too old for this server",
        "A server serves agents of its own release and of the release before.",
        "Upgrade the agent of the node and restart it; its running jobs continue and are adopted.",
    ),
    "agent-too-new": Meaning(
        "The agent is newer than the server",
        "The agent sends messages of a later release, which this server cannot read.",
        "Upgrade the server first, then the agents. The agent tries again by itself.",
    ),
    "bad-agent-key": Meaning(
        "The agent's key is not valid",
        "An agent used a key that belongs to no node, or to a removed one.",
        "Register the node again with a new join token.",
    ),
}

THERE: Final = {
    "not-found": Meaning(
        "Not found",
        (
            "The object does not exist, or you do not have permission to see it; the answer is the same in "
            "both cases on purpose."
        ),
        "Check the number or name. The API documentation lists all addresses.",
    ),
    "method-not-allowed": Meaning(
        "Method not allowed",
        "The address exists, but does not accept this HTTP method.",
        "The `Allow` header lists the accepted methods.",
    ),
    "conflict": Meaning(
        "Conflict with the current state",
        "The current state of the object does not allow this action.",
        "Read the object again, and decide with its current state.",
    ),
    "stale": Meaning(
        "Changed since you read it",
        "The object was changed after you read it; your change was not saved.",
        "Read the object again, and send your change with the new version (`If-Match`).",
    ),
    "there-already": Meaning(
        "Already exists",
        "The same object exists already; no second one was created.",
        "Find the existing object, and change it.",
    ),
    "asked-already": Meaning(
        "Already requested",
        "The same request is still open.",
        "Wait for the decision, or withdraw the first request.",
    ),
    "decided-already": Meaning(
        "Already decided",
        "The request was approved, declined or withdrawn meanwhile.",
        "Read the decision; send a new request if you need something else.",
    ),
    "already-reserved": Meaning(
        "Already reserved",
        "Another reservation holds these nodes or devices in that period.",
        "Choose another time or other nodes.",
    ),
    "reservation-not-usable": Meaning(
        "Not your reservation",
        "The reservation is for another project, for other people or for one job.",
        "Submit to the project that it is for, or leave reservation out.",
    ),
    "reservation-not-approved": Meaning(
        "Not approved yet",
        "An operator has not approved the reservation, so it holds nothing.",
        "Wait for the decision, or leave reservation out.",
    ),
    "reservation-over": Meaning(
        "The reservation is over",
        "The reservation has ended or was cancelled.",
        "Name another reservation, or leave reservation out.",
    ),
    "reservation-elsewhere": Meaning(
        "Another cluster's reservation",
        "The reservation is of another cluster than the queue of the job.",
        "Choose a queue of the cluster that the reservation is of.",
    ),
    "reservation-too-short": Meaning(
        "Does not fit into the reservation",
        "A job inside a reservation is over before the reservation ends, by its time limit.",
        "Shorten time_limit, or name a reservation that ends later.",
    ),
    "ambiguous": Meaning(
        "Several of that name",
        "The name means several things.",
        "Give the id instead of the name.",
    ),
    "not-enough-free": Meaning(
        "Not enough free resources then",
        "The cluster does not have enough free resources in that period.",
        "Request less, or another period.",
    ),
    "node-is-alive": Meaning(
        "Node already connected",
        "A node with this name is still connected, so another node cannot replace it.",
        "Stop the old agent first, or give the new node another name.",
    ),
    "idempotency-in-progress": Meaning(
        "The first request is still in progress",
        "Another request with the same Idempotency-Key has not ended yet.",
        "Wait a moment and send the request again: the answer is that of the first request.",
    ),
    "idempotency-key-reused": Meaning(
        "Idempotency-Key reused",
        "The same Idempotency-Key was used before with another body.",
        "Use a new key for each new request, and the same only to repeat one.",
    ),
    "rights-changed": Meaning(
        "Your permissions are fewer than before",
        "The request was executed once. Its answer is repeated only for a sign-in with at least the same permissions: "
        "the same roles, the same scopes, and no token that is limited to another project.",
        "Look up the result with a sign-in that may see it. Do not use a new key: the request would be executed twice.",
    ),
}

LIMITS: Final = {
    "too-many": Meaning(
        "Too many",
        "A limit on the number of objects was reached.",
        "Send fewer at once, or wait until some have finished.",
    ),
    "too-many-requests": Meaning(
        "Too many requests",
        "You send requests faster than the limit for one caller.",
        "Wait as long as `Retry-After` says, and combine reads into one request.",
    ),
    "too-many-pending": Meaning(
        "Too many pending jobs",
        "A limit on the number of pending jobs was reached.",
        "Submit more when some have started, or request a higher limit.",
    ),
    "queue-full": Meaning(
        "The queue is full",
        "The queue has reached its maximum number of pending jobs.",
        "Submit later, or to another queue.",
    ),
    "quota-exceeded": Meaning(
        "Quota exceeded",
        "The limit does not leave enough for this.",
        "Request less, wait until jobs end, or request a higher limit on the Quota page.",
    ),
    "exceeds-quota": Meaning(
        "Exceeds the hard limit",
        "The job requests more than the hard limit, so it could never start.",
        "Request less, or have the limit raised first.",
    ),
    "exceeds-wall-time": Meaning(
        "Exceeds the queue's time limit",
        "The job's time limit is longer than the queue allows.",
        "Shorten the time limit, or choose a queue for longer jobs.",
    ),
    "deadline-too-early": Meaning(
        "The deadline is too early",
        "The job is to be ended at its deadline, and its time limit does not fit before the deadline: it could never "
        "start.",
        "Shorten the time limit, move the deadline, or leave deadline_action out.",
    ),
    "can-never-fit": Meaning(
        "Can never fit",
        "No node, and no group of nodes, is large enough for this request, even when idle.",
        "The message names the largest possible request.",
    ),
    "above-priority-ceiling": Meaning(
        "Priority above your ceiling",
        "Your role limits the priority of jobs.",
        "Use a lower priority, or ask a lead or an operator.",
    ),
    "project-not-usable": Meaning(
        "Project not usable",
        "The project does not exist for you, is closed, or your role is too low.",
        "Choose one of your projects, or ask the project's lead.",
    ),
    "queue-not-usable": Meaning(
        "Queue not usable",
        "The queue is not open to your project, or no queue has this name.",
        "Choose another queue, or ask an operator.",
    ),
    "body-too-large": Meaning(
        "Request body too large",
        "The request is larger than the maximum size.",
        "Send less at once: put data into files, and jobs into several requests.",
    ),
    "too-many-rows": Meaning(
        "Too many rows in one request",
        "The request would create more rows than one request may: array jobs, dependencies, or lines of a file.",
        "Send it in several requests, each within the limit that the message names.",
    ),
    "caller-gone": Meaning(
        "Client disconnected",
        (
            "The client closed the connection before the answer was ready, so the request was stopped. "
            "Nothing was written."
        ),
        "Send the request again, with the same Idempotency-Key.",
    ),
    "too-large": Meaning(
        "Too large",
        "A value, or a message of an agent, is larger than the maximum.",
        "Send less; the message names the maximum.",
    ),
}

INPUT: Final = {
    "invalid": Meaning(
        "Invalid request",
        "One or more fields are invalid; nothing was written.",
        "`errors` lists each invalid field. Correct all of them and send the request again.",
    ),
    "bad-request": Meaning(
        "Malformed request",
        "The request is not valid HTTP for this address.",
        "Check the request against the API documentation.",
    ),
    "malformed-json": Meaning(
        "Invalid JSON",
        "The body cannot be read as JSON in UTF-8, or is nested too deep.",
        "Send one JSON object. A number must be finite, and text without NUL characters.",
    ),
    "not-json": Meaning(
        "Invalid JSON",
        "The message of an agent cannot be read as JSON.",
        "Check that agent and portal are of the same version.",
    ),
    "not-an-object": Meaning(
        "JSON object expected",
        "The body, or a field, has to be an object with names and values.",
        "Send `{...}` instead of a list, a number or text.",
    ),
    "not-a-list": Meaning(
        "List expected", "The field takes a list of values.", "Send `[...]`, even for one value."
    ),
    "not-text": Meaning("Text expected", "The field takes text only.", "Put the value into quotes."),
    "not-a-number": Meaning(
        "Number expected", "The field takes a number only.", "Send it without quotes and units."
    ),
    "not-a-flag": Meaning(
        "Boolean expected", "The field is `true` or `false`.", "Send one of the two, without quotes."
    ),
    "bad-text": Meaning(
        "Invalid text",
        "The text is too long, or contains invalid characters such as NUL.",
        "Shorten the text, and remove such characters.",
    ),
    "too-short": Meaning(
        "Too short",
        "A secret of fewer than 8 bytes cannot be masked in logs without masking ordinary words.",
        "Choose a longer value.",
    ),
    "too-long": Meaning(
        "Too long",
        "The text is longer than the field takes.",
        "Shorten the text to the length in the message.",
    ),
    "bad-name": Meaning(
        "Invalid name",
        "The name contains characters that are not allowed.",
        "Use the characters in the message: mostly letters, digits, `-`, `_` and `.`.",
    ),
    "reserved": Meaning(
        "Reserved name",
        "Muster itself sets this name for jobs.",
        "Choose another name.",
    ),
    "not-absolute": Meaning(
        "Path not absolute", "The path has to begin at the root.", "Begin the path with `/`."
    ),
    "bad-path": Meaning(
        "The path cannot be requested",
        "The path of a probe has to begin with a slash, without blanks and with ASCII characters only.",
        "Begin the path with `/`, and percent-encode other characters, such as %20 for a blank.",
    ),
    "out-of-range": Meaning(
        "Value out of range",
        "The number is outside what is allowed.",
        "The message names the minimum and the maximum.",
    ),
    "in-the-past": Meaning(
        "Time is in the past",
        "The time has to be in the future.",
        "Choose a later time, with its time zone.",
    ),
    "unreadable": Meaning(
        "Unreadable value",
        "The value does not have a format that this field accepts.",
        "The message shows an example.",
    ),
    "required": Meaning(
        "Required field missing", "The field must be present and not empty.", "Give the field a value."
    ),
    "unknown-field": Meaning(
        "Unknown field",
        "A field of this name does not exist; unknown fields are refused, not ignored.",
        "The message suggests the field that was likely meant.",
    ),
    "unknown-choice": Meaning(
        "Invalid choice", "The field takes only certain values.", "The message lists them."
    ),
    "unknown": Meaning("Unknown name", "A name in the request does not exist here.", "Check the spelling."),
    "unknown-filter": Meaning(
        "Unknown filter",
        "The list does not have this filter.",
        "The message lists the filters.",
    ),
    "bad-filter": Meaning(
        "Invalid filter value", "The value does not have the type of the filter.", "The message says which."
    ),
    "bad-pattern": Meaning(
        "Invalid file pattern",
        "An artefact pattern is not a path inside the working folder, or has a [ without a ].",
        "Write paths such as model.pt, out/*.csv or logs/**.",
    ),
    "bad-failure": Meaning(
        "Not a failure",
        "A restart rule names exit codes from 1 to 255, ranges of them, or failure classes.",
        "Write codes such as 75 or 10-19, or a class of the message.",
    ),
    "no-results": Meaning(
        "No files are kept",
        "The job has left no files, or its files have been removed.",
        "The Results tab of the job says what is kept and for how long.",
    ),
    "no-such-secret": Meaning(
        "No such secret",
        "A job names a secret that neither its owner nor its project has.",
        "Set the secret under Settings or on the project's page, or submit the job to the project that has it.",
    ),
    "no-secrets-here": Meaning(
        "Secrets not supported",
        "The backend of the queue's cluster does not support secrets.",
        "Submit the job to a queue of another cluster, or leave the secrets out.",
    ),
    "no-such-upload": Meaning(
        "No such upload",
        "You have no upload of this id. Uploads belong to one person; the job of another person cannot name it.",
        "List your uploads, or upload the folder again.",
    ),
    "already-decided": Meaning(
        "The request is decided",
        "The request for a reservation was approved, declined or withdrawn already.",
        "Read the reservation again; ask for another one where it was declined.",
    ),
    "not-supported": Meaning(
        "Not supported",
        "The request asks for something that Muster does not do.",
        "Follow the sentence of the problem: it names another way where there is one.",
    ),
    "bad-image": Meaning(
        "Not the name of an image",
        "A container image has a name as registries have it, such as python:3.12 or ghcr.io/acme/train:2.1.",
        "Correct the name of the image.",
    ),
    "image-needed": Meaning(
        "An image is needed",
        "The queue's cluster runs each job in a container.",
        "Name the container image that the job runs in, or submit the job to another queue.",
    ),
    "no-images-here": Meaning(
        "No container images here",
        "The queue's cluster runs jobs on its nodes themselves.",
        "Leave the image out, or submit the job to a queue of a cluster that runs containers.",
    ),
    "backend-lacks": Meaning(
        "The backend does not act on a field",
        "The backend that runs the queue's jobs would ignore a field of the request.",
        "Leave the field out, or submit the job to a queue of another cluster.",
    ),
    "no-uploads-here": Meaning(
        "Uploads cannot be used",
        "The queue's cluster runs jobs by a backend that takes no uploads.",
        "Submit the job to a queue of another cluster, or leave the upload out.",
    ),
    "upload-not-ready": Meaning(
        "The upload is not ready",
        "Not all bytes of the upload have come, or it was deleted.",
        "Finish the upload, or upload the folder again.",
    ),
    "upload-not-whole": Meaning(
        "The upload is not whole",
        "Pieces of the upload are missing or contradict each other, or it takes no more bytes.",
        "Send the missing pieces; where bytes contradict, delete the upload and begin a new one.",
    ),
    "upload-in-use": Meaning(
        "The upload is needed",
        "A job that has not ended begins with this upload, and may start again.",
        "Wait until the jobs have ended, or cancel them.",
    ),
    "too-many-uploads": Meaning(
        "Too many uploads",
        "The uploads of one person have a limit on their number and on their size together.",
        "Delete uploads that no job needs any more.",
    ),
    "bad-upload-path": Meaning(
        "The path cannot be uploaded",
        "The path of a file is absolute, leads out of the folder, or is too long.",
        "Send paths within the folder, such as `src/train.py`.",
    ),
    "same-path": Meaning(
        "Two files have one path",
        "A path is there twice, is a file and a folder at once, or differs from another in letter case alone.",
        "Rename one of the two.",
    ),
    "wrong-piece": Meaning(
        "The piece is wrong",
        "The piece has another size than the upload said, another checksum, or a number that does not exist.",
        "Send the piece again; all but the last have `piece_bytes` bytes.",
    ),
    "no-storage": Meaning(
        "No storage",
        "This site has no storage, so files cannot be stored outside the nodes.",
        "Ask its administrators to set `MUSTER_STORAGE`, or leave the field out.",
    ),
    "storage-unavailable": Meaning(
        "The storage does not respond",
        "The folder or bucket for artefacts is unreachable, full, or refuses requests; stored objects are not lost.",
        "Try again in a minute. The message and the portal's log say what failed.",
    ),
    "not-stored": Meaning(
        "Not in the storage",
        "The object is listed, but the storage does not have it: the object was removed outside Muster, or just now.",
        "Reload the list; if the object is still listed, ask an administrator for a backup of the storage.",
    ),
    "storage-damaged": Meaning(
        "The stored object is damaged",
        "The object's bytes have changed, or the object was encrypted with a key that is not configured.",
        "Ask an administrator to check `MUSTER_STORAGE_KEYS` and the storage.",
    ),
    "no-place": Meaning(
        "No other node can start the job",
        "The job cannot be moved: no other node, or not the requested node, can start the job now.",
        "Wait, choose another node, or requeue the job.",
    ),
    "no-checkpoints": Meaning(
        "The job makes no checkpoints",
        "The job was submitted without the field `checkpoint`, so no checkpoint can be requested.",
        "Submit the job again with `checkpoint`; the guide on checkpoints says what its program has to do.",
    ),
    "not-yours": Meaning(
        "Not on this node",
        "An agent reported a task that is not on its node, or a job without checkpoints.",
        "Check that only one agent uses the key of this node.",
    ),
    "not-expected": Meaning(
        "The checkpoint is not expected",
        "The checkpoint is stored already, was refused, or belongs to another node.",
        "No action is needed: the agent discards the checkpoint.",
    ),
    "wrong-checksum": Meaning(
        "The checksum is wrong",
        "The received bytes differ from the bytes that the agent read.",
        "The agent sends them again; if the error persists, check the network and the memory of the node.",
    ),
    "no-such-file": Meaning(
        "No such file",
        "The kept files of the job include no file of that name.",
        "Reload the list of files.",
    ),
    "not-given-out": Meaning(
        "Not a regular file",
        "Links, devices and other non-regular files cannot be downloaded.",
        "Have the job copy what you need to a regular file.",
    ),
    "changed": Meaning(
        "The file has changed",
        "The file changed while it was downloaded.",
        "Download the file again, best once the job has ended.",
    ),
    "bad-answer": Meaning(
        "Unexpected answer of the node",
        "The node sent data that the portal had not requested.",
        "Try again; if the problem remains, tell an operator the name of the node.",
    ),
    "one-of": Meaning(
        "Exactly one of these fields",
        "Exactly one of several fields has to be given.",
        "Keep one of the fields in the message.",
    ),
    "inconsistent": Meaning(
        "Conflicting fields",
        "Each field is valid by itself, but not in combination.",
        "Change one of the fields in the message.",
    ),
    "repeated": Meaning("Repeated value", "The same value is given several times.", "Keep one of them."),
    "twice": Meaning("Named twice", "The same object is named in two places.", "Keep one of them."),
    "not-changeable": Meaning(
        "Cannot be changed",
        "The field is part of what runs, or decides nothing any more in the state of the job.",
        "Do what the message says: requeue the job and change it then, or cancel it and submit it again.",
    ),
    "circle": Meaning(
        "Circular dependency",
        "The jobs would wait for each other in a circle.",
        "Remove one of the dependencies.",
    ),
    "not-a-job": Meaning(
        "Not a job", "The field takes numbers of jobs.", "Use numbers of jobs that you may see."
    ),
    "never-satisfied": Meaning(
        "Dependency can never be satisfied",
        "The other job has already ended with a different result.",
        "Remove the dependency, or wait for a different result.",
    ),
    "no-shebang": Meaning(
        "Script without interpreter line",
        "The first line does not begin with `#!`.",
        "Begin the script with `#!/bin/bash`, for example.",
    ),
    "carriage-return": Meaning(
        "Carriage returns in a batch script",
        "A line ends with a carriage return, as in files from Windows; the shell would read it as part of the line.",
        "Save the script with line feeds alone, for example with `dos2unix`.",
    ),
    "bad-document": Meaning(
        "Invalid configuration document",
        "A line of the document is no valid YAML, or says what this site cannot have.",
        "`errors` lists each line. Mend the lines and apply the document again: nothing was changed.",
    ),
    "bad-script": Meaning(
        "Invalid batch script",
        "An `#SBATCH` line is unknown or invalid.",
        "`errors` lists each line.",
    ),
    "bad-if-match": Meaning(
        "Invalid version",
        "`If-Match` takes the `ETag` of an earlier read.",
        "Send the `ETag` of your last read as it is.",
    ),
    "idempotency-key-bad": Meaning(
        "Invalid Idempotency-Key",
        "The key is empty, too long, or has characters that a header cannot contain.",
        "Use up to 200 letters and digits, for example a UUID.",
    ),
    "not-acceptable": Meaning(
        "Not acceptable", "The API answers in JSON only.", "Send `Accept: application/json`."
    ),
    "unsupported-media-type": Meaning(
        "Unsupported media type", "The API reads JSON only.", "Send `Content-Type: application/json`."
    ),
}

SERVER: Final = {
    "internal-error": Meaning(
        "Internal error",
        "The error was logged.",
        "Try again. If the error persists, give an operator the `request_id`.",
    ),
    "unavailable": Meaning(
        "Temporarily unavailable",
        "A service that Muster needs, usually the database, does not respond.",
        "Try again in a few seconds, with the same Idempotency-Key.",
    ),
    "took-too-long": Meaning(
        "Statement timeout",
        "The database work of this request exceeded the time limit of one request. Nothing was written.",
        (
            "Request less: fewer rows, a shorter period, more filters. An operator can change "
            "`MUSTER_DB_STATEMENT_SECONDS`."
        ),
    ),
    "busy": Meaning(
        "Locked by another request",
        "The request timed out while waiting for a row that another request has locked. Nothing was written.",
        "Try again in a few seconds, with the same Idempotency-Key.",
    ),
    "disk-full": Meaning(
        "The disk is full",
        "The portal or its database cannot store anything at the moment. Nothing was written.",
        "An operator has to free space; `/readyz?verbose` says where. Then try again, with the same Idempotency-Key.",
    ),
    "provider-unavailable": Meaning(
        "Quota provider not usable",
        "A requirement of the provider is not installed or not configured.",
        "The message tells an operator what is missing.",
    ),
    "provider-unreachable": Meaning(
        "Quota provider unreachable",
        "The limits are stored in Muster and will be sent to the provider.",
        "Nothing is lost. Try again when the provider responds.",
    ),
    "provider-refused": Meaning(
        "Refused by the quota provider",
        "The provider answered, but did not accept the limits.",
        "The message gives the reason; an operator corrects the provider's permissions or settings.",
    ),
    "provider-off": Meaning(
        "Quota provider disabled",
        "The portal is configured not to write to the provider.",
        "An operator can enable the provider.",
    ),
    "kept-here": Meaning(
        "Quota managed by Muster",
        "No external provider manages this quota.",
        "No action is needed.",
    ),
    "error": Meaning(
        "Request refused",
        "The message gives the reason.",
        "Follow the message, or show it to an operator.",
    ),
}

#: In the order in which they are shown.
GROUPS: Final = (
    ("Identity and permissions", WHO),
    ("Objects and conflicts", THERE),
    ("Limits", LIMITS),
    ("Request content", INPUT),
    ("Server side", SERVER),
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
