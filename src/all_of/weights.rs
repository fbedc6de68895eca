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
    pub(crate) fn new(weights: &[u32], priority: i8) -> Weights {
        let mut few = [0; FEW];
        let more = match few.get_mut(..weights.len()) {
            Some(few) => {
                few.copy_from_slice(weights);
                None
            }
            None => Some(weights.into()),
        };
        Weights { priority, few, len: weights.len(), more }
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
