"""The words the ledger uses: results of a group or member, and the reasons behind every drop and failure.

They are stored as strings, so a reader of tomorrow may meet a word it does not know and must keep it as it is.
"""

from __future__ import annotations

from enum import StrEnum


class Result(StrEnum):
    """Terminal result of a group or of one of its members."""

    TRAINED = "trained"
    DROPPED = "dropped"
    FAILED = "failed"


class Reason(StrEnum):
    """Why something was dropped or failed. The value goes to the ledger, optionally followed by `: detail`."""

    STALE = "stale"  # age over the bound when the batch was cut
    INCOMPLETE = "incomplete"  # the deadline ended before enough valid members were there
    NEVER_ARRIVED = "never_arrived"  # a member of which no sample was read
    NOT_SCORED = "not_scored"  # a sample whose required rewards did not arrive in time
    NO_SIGNAL = "no_signal"  # all rewards of the group are equal, and the learner asks for another group instead
    GROUP_DROPPED = "group_dropped"  # a valid member of a group that was dropped
    DUPLICATE = "duplicate"  # a further copy of an id that already has an outcome
    ABANDONED_BRANCH = "abandoned_branch"  # born of a version no surviving history contains
    FUTURE_VERSION = "future_version"  # born of a version not yet made
    NON_FINITE_LOGPROB = "non_finite_logprob"  # NaN, infinite or positive log-probability
    NON_FINITE_REWARD = "non_finite_reward"
    MISSING_LOGPROBS = "missing_logprobs"
    LENGTH_MISMATCH = "length_mismatch"  # tokens, log-probabilities, mask or version runs differ in length
    BAD_LOSS_MASK = "bad_loss_mask"  # a mask value other than 0 and 1
    OUT_OF_VOCABULARY = "out_of_vocabulary"  # a token id that is negative or beyond the vocabulary
    BAD_SAMPLING = "bad_sampling"  # a temperature at which no log-probability can be computed
    EMPTY_COMPLETION = "empty_completion"
    BAD_GROUP_SIZE = "bad_group_size"  # a member number outside its group
    UNVERIFIED = "unverified"  # made with weights that could not be checked, and the learner does not take such
    TOO_LARGE = "too_large"  # a record over the topic's limit, or a sample over the model's context
    PROMPT_INVALID = "prompt_invalid"  # the prompt cannot be rendered or leaves no room for one new token
    REWARD_FAILED = "reward_failed"  # a required reward gave a failure instead of a value
    REFERENCE_FAILED = "reference_failed"  # the reference model gave a failure, or log-probabilities that do not fit
    ENGINE_FAILED = "engine_failed"  # the engine raised while it generated
    ENVIRONMENT_FAILED = "environment_failed"  # what the policy acted in raised, again after all further tries
    ENVIRONMENT_TIMED_OUT = "environment_timed_out"  # it took longer than its limit
    ABORTED = "aborted"  # generation was aborted in flight
    RUN_ENDED = "run_ended"  # still open when the run reached its last step
