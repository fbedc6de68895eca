//! Work on its way to the task that carries it out, in order.
//!
//! Either end may be dropped first. When the task is gone, work is dropped, here or by the sender
//! whose work is refused, and none is left in between. A channel would keep work that a sender adds
//! while the receiver closes it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use crate::lock::lock;

/// The end that adds work.
pub(crate) struct Queue<T>(Arc<Shared<T>>);

/// The end that takes work. Work that is not taken is dropped with this, outside the lock.
pub(crate) struct Work<T>(Arc<Shared<T>>);

struct Shared<T>(Mutex<State<T>>);

struct State<T> {
    /// With each piece, whether it is quiet.
    work: VecDeque<(T, bool)>,
    /// The waker of the task that takes work, while there is no work to take.
    idle: Option<Waker>,
    /// Whether work is due to be taken.
    is_due: bool,
    /// Whether the waker was woken after quiet work was last taken: it may have been for quiet work
    /// that will be added next.
    is_announced: bool,
    /// Whether quiet work was added since the task last checked for it.
    was_quiet: bool,
    /// Whether the task will check for quiet work soon.
    is_watched: bool,
    /// No more work is added.
    is_closed: bool,
    /// No more work is taken.
    is_over: bool,
}

pub(crate) fn queue<T>() -> (Queue<T>, Work<T>) {
    let state = State {
        work: VecDeque::new(),
        idle: None,
        is_due: false,
        is_announced: false,
        was_quiet: false,
        is_watched: false,
        is_closed: false,
        is_over: false,
    };
    let shared = Arc::new(Shared(Mutex::new(state)));
    (Queue(shared.clone()), Work(shared))
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.0)
    }
}

impl<T: Send + 'static> Wake for Shared<T> {
    fn wake(self: Arc<Shared<T>>) {
        let mut state = self.lock();
        state.is_announced = true;
        State::wake(state);
    }
}

impl<T> State<T> {
    /// Makes the task take work.
    fn wake(mut state: MutexGuard<'_, State<T>>) {
        state.is_due = true;
        let idle = state.idle.take();
        drop(state);
        idle.into_iter().for_each(Waker::wake);
    }
}

impl<T> Queue<T> {
    /// Adds work, or returns it if no more work is taken.
    pub(crate) fn add(&self, work: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if state.is_over {
            return Err(work);
        }
        state.work.push_back((work, false));
        State::wake(state);
        Ok(())
    }

    /// Adds work that is to be taken when the [waker](Queue::waker) is woken, or when the task
    /// checks for it. Returns the work if no more work is taken.
    pub(crate) fn add_quietly(&self, work: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if state.is_over {
            return Err(work);
        }
        state.work.push_back((work, true));
        state.was_quiet = true;
        if state.is_announced || !state.is_watched {
            State::wake(state);
        }
        Ok(())
    }

    /// Returns whether no more work is taken.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().is_over
    }
}

impl<T: Send + 'static> Queue<T> {
    /// A waker that makes the task take work, including quiet work and work that is added next.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(self.0.clone())
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        State::wake(state);
    }
}

impl<T> Work<T> {
    /// Returns the next work; `None` if no more work is added.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if state.is_due
            && let Some((work, is_quiet)) = state.work.pop_front()
        {
            state.is_due = !state.work.is_empty();
            state.is_announced &= !is_quiet;
            return Poll::Ready(Some(work));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        state.idle = Some(context.waker().clone());
        Poll::Pending
    }

    /// Makes quiet work due. Returns whether some was added since the last check: then the task has
    /// to check again.
    pub(crate) fn check_quiet(&mut self) -> bool {
        let mut state = self.0.lock();
        state.is_due |= !state.work.is_empty();
        state.is_watched = std::mem::take(&mut state.was_quiet);
        state.is_watched
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
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

    /// Counts when it is woken, and when it is dropped.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Wake for Counted {
        fn wake(self: Arc<Counted>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Threads add work while the end that takes it is dropped.
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
    fn quiet_work_is_taken_when_it_is_woken_or_checked_for() {
        let (queue, mut work) = queue();
        let wakes = Arc::new(AtomicUsize::new(0));
        let woken = Waker::from(Arc::new(Counted(wakes.clone())));
        let (count, mut context) = (|| wakes.load(Ordering::Relaxed), Context::from_waker(&woken));
        let waker = queue.waker();
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        // The task does not check for quiet work yet.
        assert!(queue.add_quietly(1).is_ok() && count() == 1);
        assert_eq!(work.poll_next(&mut context), Poll::Ready(Some(1)));
        assert!(work.check_quiet());
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        assert!(queue.add_quietly(2).is_ok() && count() == 1);
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        waker.wake_by_ref();
        assert_eq!((work.poll_next(&mut context), count()), (Poll::Ready(Some(2)), 2));
        // A reply may arrive before its call is added.
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        waker.wake_by_ref();
        assert_eq!((work.poll_next(&mut context), count()), (Poll::Pending, 3));
        assert!(queue.add_quietly(3).is_ok() && count() == 4);
        assert_eq!(work.poll_next(&mut context), Poll::Ready(Some(3)));
        // Other work may come in between.
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        waker.wake_by_ref();
        assert!(queue.add(8).is_ok());
        assert_eq!(work.poll_next(&mut context), Poll::Ready(Some(8)));
        assert_eq!((work.poll_next(&mut context), count()), (Poll::Pending, 5));
        assert!(queue.add_quietly(9).is_ok() && count() == 6);
        assert_eq!(work.poll_next(&mut context), Poll::Ready(Some(9)));
        // Other work takes quiet work along.
        assert!(queue.add_quietly(4).is_ok() && queue.add(5).is_ok());
        let mut next = || work.poll_next(&mut context);
        assert_eq!([next(), next(), next()], [Poll::Ready(Some(4)), Poll::Ready(Some(5)), Poll::Pending]);
        assert!(queue.add_quietly(6).is_ok());
        assert_eq!(work.poll_next(&mut context), Poll::Pending);
        assert!(work.check_quiet());
        assert_eq!(work.poll_next(&mut context), Poll::Ready(Some(6)));
        assert!(!work.check_quiet(), "some was added");
        assert!(queue.add_quietly(7).is_ok());
        drop(queue);
        let mut next = || work.poll_next(&mut context);
        assert_eq!([next(), next()], [Poll::Ready(Some(7)), Poll::Ready(None)]);
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
