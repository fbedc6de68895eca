//! The tenants, and the calls they make.
//!
//! The first half of the calls is long and held back by the tokens; the second half is short and
//! held back by the requests.

use std::ops::Range;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    /// The waiting tenant with the highest goes first.
    pub(crate) priority: i8,
    /// How many calls it makes at one time.
    pub(crate) tasks: u32,
    /// Of a long call.
    pub(crate) prompt_tokens: Range<u32>,
    /// The most that may be generated for one long call.
    pub(crate) max_tokens: u32,
    /// The milliseconds between an answer and the next call of that task.
    pub(crate) pause: Range<u32>,
    /// One part in so many of all tokens is what it may use at most.
    pub(crate) part: Option<u32>,
}

/// A short call has a part in so many of the tokens of a long one.
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
    /// The tokens that one call can cost at most.
    pub(crate) fn largest(&self) -> u32 {
        self.prompt_tokens.end + self.max_tokens
    }

    /// The tokens of the prompt of the call with this number, and the tokens that may be generated.
    pub(crate) fn call(&self, number: u32, short: bool) -> (u32, u32) {
        let part = if short { SHORT } else { 1 };
        (pick(&self.prompt_tokens, u64::from(number)) / part, self.max_tokens / part)
    }

    /// The pause after the call with this number.
    pub(crate) fn pause(&self, call: u32) -> Duration {
        Duration::from_millis(pick(&self.pause, u64::from(call) << 32).into())
    }
}

/// A number of the range, determined by the seed: the cost of a call does not depend on the order
/// of the calls.
pub(crate) fn pick(range: &Range<u32>, seed: u64) -> u32 {
    SmallRng::seed_from_u64(seed).random_range(range.clone())
}
