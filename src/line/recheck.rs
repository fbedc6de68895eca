//! Rechecks: asking another limiter to check its queue, when no lock is held.
//!
//! A composite and its members notify each other when times have moved. A limiter may not lock
//! another one while it holds its own lock, so it leaves the recheck in its
//! [`Deferred`](crate::line::deferred::Deferred). One recheck often leads to the next, along a
//! chain as long as the number of limiters. So a thread that is already in a recheck puts further
//! rechecks on its list and runs them in a loop, instead of nesting calls deeper and deeper. A
//! limiter that is on the list already is not added again: its recheck will find all of it.
//!
//! A change of a member notifies many composites, and each of them visits the first waiters of its
//! queue. They share the number of visits that one composite would make, so the cost of the call
//! does not depend on the number of composites.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::line::deferred::{Payload, run};
use crate::line::due::MAX_FORECAST;
use crate::sync::thread_local;

/// A limiter that can be asked to check its queue.
pub(crate) trait Recheck: Send + Sync {
    /// Serves the waiters that are due. Called without any lock.
    fn recheck(&self);
}

struct List {
    /// The limiters that this thread must still recheck, after the current one.
    rechecks: VecDeque<Arc<dyn Recheck>>,
    /// Their addresses.
    listed: HashSet<usize>,
    /// How many waiters these limiters may visit after a change, all together.
    budget: usize,
    /// How many composites these limiters may notify that wait for other seats, all together.
    held_up: usize,
}

/// A composite that waits for other seats may wait longer by a change, and so may all composites
/// behind its seats, one after the other. At most so many of them are notified by one call.
const MAX_HELD_UP: usize = 256;

impl List {
    /// Adds limiters. None of those that are on the list already is the last reference.
    fn extend(&mut self, rechecks: Vec<Arc<dyn Recheck>>) {
        let List { rechecks: list, listed, .. } = self;
        list.extend(rechecks.into_iter().filter(|limiter| listed.insert(address(limiter))));
    }

    fn next(&mut self) -> Option<Arc<dyn Recheck>> {
        let next = self.rechecks.pop_front()?;
        self.listed.remove(&address(&next));
        Some(next)
    }
}

fn address(limiter: &Arc<dyn Recheck>) -> usize {
    Arc::as_ptr(limiter).addr()
}

thread_local! {
    /// `None` if this thread is in no recheck.
    static LIST: RefCell<Option<List>> = RefCell::default();
}

/// Calls `visit` to visit waiters in the queue after a change. `visit` gets the greatest number
/// that it may visit, and returns how many it has visited. The greatest number is an equal share of
/// the visits left to all limiters that this thread must still recheck.
pub(super) fn visit_at_most(visit: impl FnOnce(usize) -> usize) {
    let share = |list: &List| list.budget.div_ceil(list.rechecks.len() + 1).max(1);
    let most = LIST.try_with(|list| list.borrow().as_ref().map(share)).unwrap_or(None);
    let visited = visit(most.unwrap_or(MAX_FORECAST));
    // A thread that is ending has no list.
    let _ = LIST.try_with(|list| {
        if let Some(list) = &mut *list.borrow_mut() {
            list.budget = list.budget.saturating_sub(visited);
        }
    });
}

/// Calls `notify` to notify composites that wait for other seats. `notify` gets the greatest number
/// that it may notify, up to `most`, and returns how many it has notified.
pub(super) fn notify_at_most(most: usize, notify: impl FnOnce(usize) -> usize) {
    let left = LIST.try_with(|list| list.borrow().as_ref().map(|list| list.held_up)).unwrap_or(None);
    let notified = notify(left.map_or(most, |left| left.min(most)));
    let _ = LIST.try_with(|list| {
        if let Some(list) = &mut *list.borrow_mut() {
            list.held_up = list.held_up.saturating_sub(notified);
        }
    });
}

/// Rechecks all of these limiters, and the limiters that they notify in turn. Returns the first
/// panic of user code.
pub(crate) fn recheck_all(rechecks: Vec<Arc<dyn Recheck>>) -> Option<Payload> {
    if rechecks.is_empty() {
        return None;
    }
    let mut rechecks = Some(rechecks);
    let outermost = LIST.try_with(|list| match &mut *list.borrow_mut() {
        Some(list) => {
            rechecks.take().into_iter().for_each(|rechecks| list.extend(rechecks));
            false
        }
        none => {
            *none = rechecks.take().map(|rechecks| {
                let (empty, listed) = (VecDeque::new(), HashSet::new());
                let (budget, held_up) = (MAX_FORECAST, MAX_HELD_UP);
                let mut list = List { rechecks: empty, listed, budget, held_up };
                list.extend(rechecks);
                list
            });
            true
        }
    });
    let mut panic = None;
    // A recheck that panics must not stop the others. Dropping the last reference may drop the
    // limiter, which runs user code, too.
    let mut recheck = |shared: Arc<dyn Recheck>| {
        run(&mut panic, || {
            shared.recheck();
            drop(shared);
        });
    };
    match outermost {
        Ok(false) => {}
        Ok(true) => std::iter::from_fn(next).for_each(recheck),
        // The thread is ending, and no longer has a list.
        Err(_) => rechecks.into_iter().flatten().for_each(&mut recheck),
    }
    panic
}

fn next() -> Option<Arc<dyn Recheck>> {
    LIST.try_with(|list| {
        let mut list = list.borrow_mut();
        let next = list.as_mut().and_then(List::next);
        if next.is_none() {
            *list = None;
        }
        next
    })
    .unwrap_or(None)
}
