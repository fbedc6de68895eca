//! Tokio's paused time, in steps of a microsecond.
//!
//! While a runtime is idle, paused time advances to the next timer, and timers have whole
//! milliseconds. A model also waits until the runtime is idle, and advances the time to its next
//! event if that comes before the next timer can fire.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The clock of a simulation. Its times count from the start.
#[derive(Clone)]
pub(super) struct Clock {
    began: Instant,
    /// Notifies when every task waits.
    idle: Arc<Notify>,
}

thread_local! {
    static CURRENT: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// Runs a future, and the tasks that it spawns, on paused time.
///
/// # Panics
///
/// If there is no memory for a runtime, and inside another runtime.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    // One type for all futures: the runtime is compiled once, and not for each test.
    run_boxed(Box::pin(future))
}

fn run_boxed<T>(future: Pin<Box<dyn Future<Output = T> + '_>>) -> T {
    let idle = Arc::new(Notify::new());
    let on_park = idle.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        // A task that is woken here runs before time moves.
        .on_thread_park(move || on_park.notify_waiters())
        .build()
        .expect("a runtime");
    let answer = runtime.block_on(async {
        // The simulation begins where the runtime began to count milliseconds, because paused time
        // has not moved yet.
        CURRENT.set(Some(Clock { began: Instant::now(), idle }));
        future.await
    });
    CURRENT.set(None);
    answer
}

impl Clock {
    /// The clock of this thread's simulation.
    pub(super) fn current() -> Clock {
        CURRENT.with_borrow(Clone::clone).expect("a model needs tidegate_redis::simulation::run")
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until a time, or until `sooner` is notified of an earlier event.
    pub(super) async fn go_to(&self, time: Option<Duration>, sooner: &Notify) {
        self.idle.notified().await;
        let now = self.now();
        let next_ms = whole_ms(now) + Duration::from_millis(1);
        match time {
            // Something took time meanwhile.
            Some(time) if time <= now => {}
            Some(time) if time < next_ms => tokio::time::advance(time - now).await,
            // Timers of the next millisecond come first.
            _ if now != whole_ms(now) => tokio::time::advance(next_ms - now).await,
            Some(time) => {
                let ms = self.began + whole_ms(time);
                _ = tokio::time::timeout_at(ms, sooner.notified()).await;
            }
            None => sooner.notified().await,
        }
    }
}

fn whole_ms(time: Duration) -> Duration {
    time - Duration::from_nanos((time.subsec_nanos() % 1_000_000).into())
}
