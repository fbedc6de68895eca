//! Asking another limiter to look at its line again, when no lock is held.
//!
//! A composite and its members tell each other when times have moved. One may not lock the other
//! while it holds its own lock, so it leaves the recheck in its
//! [`Deferred`](crate::line::deferred::Deferred). And one recheck often leads to the next, along a
//! chain as long as there are limiters. So a thread that is at a recheck already puts further ones
//! on its list and goes on in a loop, instead of calling deeper and deeper.
//!
//! A change of a member rings many composites, and each looks at the first waiters of its line. So
//! that the call costs as much beside any number of them, they share the looks of one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::line::deferred::{Payload, run};
use crate::line::due::FORESEEN;
use crate::sync::thread_local;

/// A limiter that can be asked to look at its line.
pub(crate) trait Recheck: Send + Sync {
    /// Serves the waiters that are due. Called without any lock.
    fn recheck(&self);
}

struct List {
    /// The limiters that this thread has still to recheck, behind the one that it is at.
    rechecks: VecDeque<Arc<dyn Recheck>>,
    /// How many waiters they may look at after a change, all together.
    looks: usize,
}

thread_local! {
    /// `None` if this thread is at no recheck.
    static LIST: RefCell<Option<List>> = RefCell::default();
}

/// Looks at waiters in line after a change, at most as many as this tells, and tells how many. That
/// is an equal share of all that this thread has still to recheck.
pub(super) fn look_at_most(look: impl FnOnce(usize) -> usize) {
    let share = |list: &List| list.looks.div_ceil(list.rechecks.len() + 1).max(1);
    let most = LIST.try_with(|list| list.borrow().as_ref().map(share)).unwrap_or(None);
    let looked = look(most.unwrap_or(FORESEEN));
    // A thread that is ending has no list.
    let _ = LIST.try_with(|list| {
        if let Some(list) = &mut *list.borrow_mut() {
            list.looks = list.looks.saturating_sub(looked);
        }
    });
}

/// Rechecks all of them, and the limiters that they ask in turn. Returns the first panic of foreign
/// code.
pub(crate) fn recheck_all(rechecks: Vec<Arc<dyn Recheck>>) -> Option<Payload> {
    if rechecks.is_empty() {
        return None;
    }
    let mut rechecks = Some(rechecks);
    let outermost = LIST.try_with(|list| match &mut *list.borrow_mut() {
        Some(list) => {
            list.rechecks.extend(rechecks.take().into_iter().flatten());
            false
        }
        none => {
            *none = rechecks.take().map(|rechecks| List { rechecks: rechecks.into(), looks: FORESEEN });
            true
        }
    });
    let mut panic = None;
    // A recheck that panics must not take the others with it. The limiter may be gone with its last
    // reference, which is foreign code, too.
    let mut recheck = |shared: Arc<dyn Recheck>| {
        run(&mut panic, || {
            shared.recheck();
            drop(shared);
        });
    };
    match outermost {
        Ok(false) => {}
        Ok(true) => std::iter::from_fn(next).for_each(recheck),
        // The thread is ending, and has no list any more.
        Err(_) => rechecks.into_iter().flatten().for_each(&mut recheck),
    }
    panic
}

fn next() -> Option<Arc<dyn Recheck>> {
    LIST.try_with(|list| {
        let mut list = list.borrow_mut();
        let next = list.as_mut().and_then(|list| list.rechecks.pop_front());
        if next.is_none() {
            *list = None;
        }
        next
    })
    .unwrap_or(None)
}
