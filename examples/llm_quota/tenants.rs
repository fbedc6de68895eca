//! The tenants, and the calls they make.
//!
//! The first half of the calls is long and limited by the tokens; the second half is short and
//! limited by the requests.

use std::ops::Range;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    /// The waiting tenant with the highest priority goes first.
    pub(crate) priority: i8,
    /// The number of calls that it makes at one time.
    pub(crate) tasks: u32,
    /// The prompt tokens of a long call.
    pub(crate) prompt_tokens: Range<u32>,
    /// The most tokens that may be generated for one long call.
    pub(crate) max_tokens: u32,
    /// The milliseconds between a response and the next call of that task.
    pub(crate) pause: Range<u32>,
    /// The tenant may use at most one part in `part` of all tokens.
    pub(crate) part: Option<u32>,
}

/// A short call has one part in this many of the tokens of a long one.
const SHORT: u32 = 4;

pub(crate) const TENANTS: [Tenant; 3] = [
    Tenant {
        name: "interactive",
        priority: 10,
        tasks: 6,
        prompt_tokens: 50..150,
        max_tokens: 200,
        pause: 400..1000,
        part: None,
    },
    Tenant {
        name: "batch",
        priority: 0,
        tasks: 4,
        prompt_tokens: 200..400,
        max_tokens: 600,
        pause: 300..900,
        part: None,
    },
    Tenant {
        name: "background",
        priority: -10,
        tasks: 8,
        prompt_tokens: 100..300,
        max_tokens: 400,
        pause: 0..1,
        part: Some(3),
    },
];

impl Tenant {
    /// Returns the most tokens that one call can cost.
    pub(crate) fn largest(&self) -> u32 {
        self.prompt_tokens.end + self.max_tokens
    }

    /// Returns the prompt tokens of the call with this number, and the tokens that may be
    /// generated.
    pub(crate) fn call(&self, number: u32, short: bool) -> (u32, u32) {
        let part = if short { SHORT } else { 1 };
        (pick(&self.prompt_tokens, u64::from(number)) / part, self.max_tokens / part)
    }

    /// Returns the pause after the call with this number.
    pub(crate) fn pause(&self, call: u32) -> Duration {
        Duration::from_millis(pick(&self.pause, u64::from(call) << 32).into())
    }
}

/// Returns a number of the range that the seed determines. So the cost of a call does not depend on
/// the order of the calls.
pub(crate) fn pick(range: &Range<u32>, seed: u64) -> u32 {
    SmallRng::seed_from_u64(seed).random_range(range.clone())
}
