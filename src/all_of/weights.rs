//! How many permits of each limiter one request asks for.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use crate::all_of::{AllRefusal, AllRequest};
use crate::request::Request;

/// The number of weights kept without allocating.
const FEW: usize = 6;

/// One number for each member, in the members' order, and the priority of the request.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) priority: i8,
    few: [u32; FEW],
    len: usize,
    /// All numbers, if there are more than `FEW`.
    more: Option<Arc<[u32]>>,
    /// The number for each rate limiter that the request does not name.
    pub(crate) others: u32,
    /// Whether the result includes the permits left.
    pub(crate) wants_left: bool,
    /// Set if the request takes as many permits of these members as they have.
    pub(crate) as_many: Option<Arc<AsMany>>,
}

/// A request that takes an equal number of each of these members: as many as all of them have.
pub(crate) struct AsMany {
    /// The most permits to take of each member.
    pub(crate) most: NonZeroU32,
    /// The rate limiters that the request does not name.
    pub(crate) members: Vec<usize>,
}

impl Weights {
    /// Creates weights at priority 0.
    pub(crate) fn new(weights: &[u32]) -> Weights {
        let mut few = [0; FEW];
        let more = match few.get_mut(..weights.len()) {
            Some(few) => {
                few.copy_from_slice(weights);
                None
            }
            None => Some(weights.into()),
        };
        Weights { priority: 0, few, len: weights.len(), more, others: 1, wants_left: false, as_many: None }
    }

    /// Creates weights of one permit for each member, at priority 0.
    pub(crate) fn ones(members: usize) -> Weights {
        match members {
            0..=FEW => Weights { few: [1; FEW], len: members, ..Weights::new(&[]) },
            _ => Weights::new(&vec![1; members]),
        }
    }

    /// These numbers, with the costs that were set for members, in the members' order.
    pub(crate) fn with_costs(mut self, costs: impl Iterator<Item = Option<u32>>) -> Weights {
        for (index, cost) in costs.enumerate() {
            if let Some(n) = cost {
                self.set(index, n);
            }
        }
        self
    }

    /// These numbers, with the priority of a request and its wish for the permits left.
    pub(crate) fn of_request(self, request: &Request) -> Weights {
        let Request { priority, wants_left, .. } = *request;
        Weights { priority, wants_left, ..self }
    }

    /// Sets the numbers to the costs of a request. `rates` are the members to which its number
    /// applies.
    pub(super) fn set_costs(
        &mut self,
        request: &AllRequest<'_>,
        rates: impl Iterator<Item = usize> + Clone,
        find: impl Fn(&str) -> Result<usize, AllRefusal>,
    ) -> Result<(), AllRefusal> {
        if let Some(n) = request.others() {
            rates.clone().for_each(|index| self.set(index, n));
            self.others = n;
        }
        request.costs().try_for_each(|(name, n)| find(name).map(|index| self.set(index, n)))?;
        if let Some(most) = request.to_request().more() {
            let mut members: Vec<_> = rates.collect();
            for (name, _) in request.costs() {
                let named = find(name)?;
                members.retain(|index| *index != named);
            }
            self.as_many = Some(Arc::new(AsMany { most, members }));
        }
        Ok(())
    }

    /// These numbers, with the number `n` for each of these members, which the request does not
    /// name.
    pub(super) fn with_others(&self, n: u32, members: &[usize]) -> Weights {
        let mut weights = Weights { others: n, ..self.clone() };
        members.iter().for_each(|index| weights.set(*index, n));
        weights
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
