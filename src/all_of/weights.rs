//! How many permits of each limiter one request asks for.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// So many are kept without allocating.
const FEW: usize = 6;

/// One number for each member, in their order, and how important the request is.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) priority: i8,
    few: [u32; FEW],
    len: usize,
    /// All of them, if they are more than a few.
    more: Option<Arc<[u32]>>,
}

impl Weights {
    /// At priority 0.
    pub(crate) fn new(weights: &[u32]) -> Weights {
        let mut few = [0; FEW];
        let more = match few.get_mut(..weights.len()) {
            Some(few) => {
                few.copy_from_slice(weights);
                None
            }
            None => Some(weights.into()),
        };
        Weights { priority: 0, few, len: weights.len(), more }
    }

    /// One of each member, at priority 0.
    pub(crate) fn ones(members: usize) -> Weights {
        match members {
            0..=FEW => Weights { priority: 0, few: [1; FEW], len: members, more: None },
            _ => Weights::new(&vec![1; members]),
        }
    }

    pub(crate) fn of_priority(self, priority: i8) -> Weights {
        Weights { priority, ..self }
    }

    /// Sets the number of one member.
    pub(crate) fn set(&mut self, index: usize, n: u32) {
        let weights = match &mut self.more {
            None => &mut self.few[..],
            Some(more) => Arc::make_mut(more),
        };
        weights[index] = n;
    }
}

impl Deref for Weights {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        self.more.as_deref().unwrap_or(&self.few[..self.len.min(FEW)])
    }
}

impl PartialEq for Weights {
    fn eq(&self, other: &Weights) -> bool {
        self.priority == other.priority && **self == **other
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
