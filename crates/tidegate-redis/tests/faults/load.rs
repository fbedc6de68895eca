//! Requests under a fault, and their outcomes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::AnyLimiter;
use tidegate_redis::{Store, StoreBuilder, WhileAway};

/// A limit that no test uses up, so that each grant of the store takes one permit of it. Its window
/// ends in 2052, and thus not during a test.
pub(crate) const LINE: &str = "fixed_window 1000000/10000d";
pub(crate) const LIMIT: u64 = 1_000_000;

/// A test that hangs ends after this time. No call takes that long.
const HANG: Duration = Duration::from_secs(150);

/// The outcomes of requests. Every request is counted once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Requests that the store granted.
    pub(crate) granted: u64,
    /// Requests that passed without the store.
    pub(crate) open: u64,
    pub(crate) refused: u64,
    pub(crate) worst: Duration,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.granted += other.granted;
        self.open += other.open;
        self.refused += other.refused;
        self.worst = self.worst.max(other.worst);
    }
}

/// A store with a timeout that no machine misses, for faults that do not concern deadlines.
pub(crate) fn patient(url: impl Into<String>) -> StoreBuilder {
    Store::builder(url).timeout(Duration::from_secs(100))
}

/// A store that is open while it is away.
pub(crate) fn open(builder: StoreBuilder) -> (Store, AnyLimiter) {
    let store = builder.while_away(WhileAway::Open).open().unwrap();
    let limiter = limiter(&store, "all");
    (store, limiter)
}

pub(crate) fn limiter(store: &Store, tag: &str) -> AnyLimiter {
    store.limiter(tag).limit("limit", LINE).build().unwrap().into()
}

/// One request that does not wait.
pub(crate) async fn ask(limiter: &AnyLimiter) -> Tally {
    let begun = Instant::now();
    let answer = tokio::time::timeout(HANG, limiter.acquire_now([])).await.expect("an answer");
    let mut tally = Tally { worst: begun.elapsed(), ..Tally::default() };
    match answer {
        Ok(permits) if permits.permits() > 0 => tally.granted = 1,
        Ok(_) => tally.open = 1,
        Err(_) => tally.refused = 1,
    }
    tally
}

/// This many requests in sequence.
pub(crate) async fn ask_times(limiter: &AnyLimiter, times: u64) -> Tally {
    let mut all = Tally::default();
    for _ in 0..times {
        all.add(ask(limiter).await);
    }
    all
}

/// Tasks that make requests without end.
pub(crate) struct Load {
    tasks: Vec<tokio::task::JoinHandle<Tally>>,
    is_over: Arc<AtomicBool>,
    so_far: Arc<Mutex<Tally>>,
}

impl Load {
    /// A task for each limiter.
    pub(crate) fn start(limiters: impl IntoIterator<Item = AnyLimiter>) -> Load {
        let (is_over, so_far) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Tally::default())));
        let tasks = limiters.into_iter().map(|limiter| {
            let (is_over, so_far) = (is_over.clone(), so_far.clone());
            tokio::spawn(async move {
                let mut all = Tally::default();
                while !is_over.load(Ordering::Relaxed) {
                    let one = ask(&limiter).await;
                    all.add(one);
                    so_far.lock().unwrap().add(one);
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                all
            })
        });
        let tasks = tasks.collect();
        Load { tasks, is_over, so_far }
    }

    pub(crate) fn so_far(&self) -> Tally {
        *self.so_far.lock().unwrap()
    }

    /// Waits until the store has granted this many further requests.
    pub(crate) async fn granted(&self, more: u64) {
        let before = self.so_far().granted;
        self.until("requests are granted", || self.so_far().granted >= before + more).await;
    }

    /// Waits until this many further requests have passed without the store.
    pub(crate) async fn opened(&self, more: u64) {
        let before = self.so_far().open;
        self.until("requests pass without the store", || self.so_far().open >= before + more).await;
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < 2 * HANG, "it never becomes so: {what}; {:?}", self.so_far());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) async fn end(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        for task in self.tasks {
            all.add(task.await.unwrap());
        }
        all
    }
}

/// The permits that a server has charged to the limit `all`.
pub(crate) async fn charged(url: &str) -> u64 {
    charged_to(url, "all").await
}

/// The permits that a server has charged to the limit of a tag.
pub(crate) async fn charged_to(url: &str, tag: &str) -> u64 {
    let store = Store::builder(url).timeout(HANG).open().unwrap();
    let limiter = store.limiter(tag).limit("limit", LINE).build().unwrap();
    let begun = Instant::now();
    loop {
        match limiter.status().await {
            Ok(status) => return LIMIT - status.members[0].1.available,
            Err(error) => assert!(begun.elapsed() < HANG, "no status: {error}, {:?}", store.trouble()),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Prints the effects of a fault.
pub(crate) fn row(fault: &str, tally: Tally, store: &Store) {
    let counts = store.counts();
    println!(
        "| {fault} | {} granted, {} without the store, {} refused | answered {}, unknown {}, not run {}, \
         skipped {}, misconfigured {} | worst {:.1} ms |",
        tally.granted,
        tally.open,
        tally.refused,
        counts.answered,
        counts.unknown,
        counts.failed,
        counts.skipped,
        counts.misconfigured,
        tally.worst.as_secs_f64() * 1e3
    );
}

/// Asserts that no request was charged twice: the store has charged the permits of each request
/// that it granted, and at most one for each request whose outcome is not known.
#[track_caller]
pub(crate) fn assert_charged_once(charged: u64, tally: Tally, store: &Store) {
    let unknown = store.counts().unknown;
    assert!(charged >= tally.granted, "{charged} charged, {tally:?}");
    assert!(charged <= tally.granted + unknown, "{charged} charged, {unknown} unknown, {tally:?}");
}
