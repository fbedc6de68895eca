//! Work on its way to the task that carries it out, in order.
//!
//! Both ends may go first. When the task is gone, work is dropped, here or by the sender that is
//! refused, and none is left in between: a channel keeps what a sender adds while the receiver
//! closes it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Where work is added.
pub(crate) struct Queue<T>(Arc<Mutex<State<T>>>);

/// Where work is taken. Work that is not taken is dropped with this, which has no lock then.
pub(crate) struct Work<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    work: VecDeque<T>,
    /// The task that takes work, while there is none.
    idle: Option<Waker>,
    /// No more comes.
    is_closed: bool,
    /// No more is taken.
    is_over: bool,
}

pub(crate) fn queue<T>() -> (Queue<T>, Work<T>) {
    let state = State { work: VecDeque::new(), idle: None, is_closed: false, is_over: false };
    let state = Arc::new(Mutex::new(state));
    (Queue(state.clone()), Work(state))
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Queue<T> {
    /// Adds work, or returns it if no more is taken.
    pub(crate) fn add(&self, work: T) -> Result<(), T> {
        let mut state = lock(&self.0);
        if state.is_over {
            return Err(work);
        }
        state.work.push_back(work);
        let idle = state.idle.take();
        drop(state);
        idle.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether no more is taken.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.0).is_over
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.is_closed = true;
        let idle = state.idle.take();
        drop(state);
        idle.into_iter().for_each(Waker::wake);
    }
}

impl<T> Work<T> {
    /// The next work; `None` if no more comes.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        match state.work.pop_front() {
            Some(work) => Poll::Ready(Some(work)),
            None if state.is_closed => Poll::Ready(None),
            None => {
                state.idle = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.is_over = true;
        let rest = std::mem::take(&mut state.work);
        drop(state);
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts itself when it is dropped.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Threads add while the end is dropped.
    #[test]
    fn no_work_is_left_behind() {
        for _ in 0..200 {
            let (queue, work) = queue();
            let dropped = Arc::new(AtomicUsize::new(0));
            let barrier = std::sync::Barrier::new(3);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        barrier.wait();
                        for _ in 0..100 {
                            drop(queue.add(Counted(dropped.clone())));
                        }
                    });
                }
                barrier.wait();
                drop(work);
            });
            assert_eq!(dropped.load(Ordering::Relaxed), 200);
            assert!(queue.is_over());
        }
    }

    #[test]
    fn work_comes_in_order_and_ends() {
        let (queue, mut work) = queue();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        assert!(queue.add(1).is_ok() && queue.add(2).is_ok());
        drop(queue);
        let mut next = || work.poll_next(&mut context);
        assert_eq!([next(), next(), next()], [Poll::Ready(Some(1)), Poll::Ready(Some(2)), Poll::Ready(None)]);
    }
}
