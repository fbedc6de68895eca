//! Policies from which pairs are made.

use tidegate::AnyPolicy;
use tidegate::policy::Both;

pub(crate) type Two = Both<AnyPolicy, AnyPolicy>;

/// Each policy grants five permits at once at some time.
pub(crate) const KINDS: [&str; 12] = [
    "smooth_bursty 5/s",
    "smooth_bursty 4/s max_burst 4s start_full",
    "token_bucket 5/s burst 5",
    "token_bucket 4/2s burst 12",
    "token_bucket 4/s burst 6 interval_refill",
    "leaky_bucket 5/s nodelay 4",
    "fixed_window 7/s",
    "sliding_window 7/s cells 3",
    "sliding_estimate 9/2s",
    "sliding_log 6/s",
    "fixed_window 20/5s from_first_grant",
    "smooth_warming_up 5/s warm_up 2s",
];

/// The last two policies keep a trace of an undone grant: when a window started, and how cold the
/// policy was.
pub(crate) const EXACT: usize = KINDS.len() - 2;

pub(crate) fn kind(which: usize) -> AnyPolicy {
    KINDS[which].parse().expect("a policy")
}
