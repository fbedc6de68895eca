//! What does each of our own code paths cost, with clock and policy measured separately?
//!
//! `cargo bench --bench paths` takes about a minute; `-- NAME` runs the paths with this in their
//! name, `-- --quick` measures roughly.

use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion};
use tidegate::policy::Policy;
use tidegate::{Clock, Nanos, Rate, RateLimiter, SmoothBursty, SmoothWarmingUp, SystemClock, TokioClock};

/// What does it cost to read a clock?
fn clocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("clock");
    let (system, tokio, quanta) = (SystemClock::new(), TokioClock::new(), quanta::Clock::new());
    let start = Instant::now();
    group.bench_function("SystemClock", |bencher| bencher.iter(|| black_box(&system).now()));
    group.bench_function("TokioClock", |bencher| bencher.iter(|| black_box(&tokio).now()));
    group.bench_function("std Instant", |bencher| bencher.iter(|| black_box(&start).elapsed()));
    group.bench_function("quanta Instant", |bencher| bencher.iter(quanta::Instant::now));
    group.bench_function("quanta raw", |bencher| bencher.iter(|| black_box(&quanta).raw()));
    group.finish();
}

const SECOND: Nanos = Nanos::new(1_000_000_000);

/// Returns times that rise by a step, like those of a clock.
fn rising(step: u64) -> impl FnMut() -> Nanos {
    let mut at = SECOND;
    move || {
        at = at.saturating_add(Nanos::new(step));
        at
    }
}

/// What does `SmoothBursty` cost without a clock?
fn smooth_bursty(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("SmoothBursty");
    for n in [1, 100] {
        let policy = SmoothBursty::new(Rate::per_second(1_000_000));
        let state = policy.start(Nanos::ZERO);
        // Each request arrives when the one before it is just paid.
        let mut at = rising(1000 * u64::from(n));
        group.bench_function(format!("granted n={n}"), |bencher| {
            bencher.iter(|| black_box(&policy).try_acquire(black_box(&state), at(), black_box(n)));
        });
        let policy = SmoothBursty::new(Rate::per_hour(1));
        let state = policy.start(SECOND);
        assert!(policy.try_acquire(&state, SECOND, 1).is_ok(), "the first one is granted");
        group.bench_function(format!("refused n={n}"), |bencher| {
            bencher.iter(|| black_box(&policy).try_acquire(black_box(&state), SECOND, black_box(n)));
        });
    }
    group.finish();
}

/// What does `SmoothWarmingUp` cost without a clock?
fn smooth_warming_up(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("SmoothWarmingUp");
    // Cold: 20 ms between two requests refill the stored permits each time, and are so short that
    // the clock's 34 years last. Warm: faster than the rate of cold permits throughout.
    for (name, step) in [("granted cold", 20_000_000), ("granted warm", 1000)] {
        let policy = SmoothWarmingUp::new(Rate::per_second(1_000_000), Duration::from_millis(10));
        let state = policy.start(Nanos::ZERO);
        let mut now = Nanos::ZERO;
        // Until the warm-up is over: 100 ms of demand.
        while step == 1000 && now < Nanos::new(100_000_000) {
            _ = policy.try_acquire(&state, now, 1);
            now = now.saturating_add(Nanos::new(step));
        }
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                now = now.saturating_add(Nanos::new(step));
                black_box(&policy).try_acquire(black_box(&state), now, black_box(1))
            });
        });
    }
    let policy = SmoothWarmingUp::new(Rate::per_hour(1), Duration::from_secs(1));
    let state = policy.start(SECOND);
    assert!(policy.try_acquire(&state, SECOND, 1).is_ok(), "the first one is granted");
    group.bench_function("refused", |bencher| {
        bencher.iter(|| black_box(&policy).try_acquire(black_box(&state), SECOND, black_box(1)));
    });
    group.finish();
}

/// What does one call on the limiter cost while no request waits?
fn limiter(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("limiter");
    let free = RateLimiter::new(SmoothBursty::new(Rate::per_second(1_000_000_000)).start_full());
    let spent = RateLimiter::smooth_bursty(Rate::per_hour(1));
    assert!(spent.try_acquire().is_ok(), "the first one is granted");
    group.bench_function("try_acquire granted", |bencher| bencher.iter(|| black_box(&free).try_acquire()));
    group.bench_function("try_acquire refused", |bencher| bencher.iter(|| black_box(&spent).try_acquire()));
    group.bench_function("acquire ready on first poll", |bencher| {
        bencher.iter(|| {
            let poll = poll_once(pin!(black_box(&free).acquire()));
            assert!(poll.is_ready(), "a permit is there");
        });
    });
    group.bench_function("set_rate", |bencher| {
        let rates = [Rate::per_hour(1), Rate::per_hour(2)];
        let mut turn = 0;
        bencher.iter(|| {
            turn ^= 1;
            spent.set_rate(black_box(rates[turn]));
        });
    });
    group.bench_function("refund", |bencher| bencher.iter(|| black_box(&free).refund(black_box(1))));
    group.finish();
}

/// What does a wait cost, from its first poll to its drop, without other waiters and behind others?
fn queue(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let mut group = criterion.benchmark_group("queue");
    for waiting in [0, 1, 10_000] {
        let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
        assert!(limiter.try_acquire().is_ok(), "the first one is granted");
        let mut others: Vec<_> = (0..waiting).map(|_| limiter.acquire_owned(1)).collect();
        for other in &mut others {
            assert!(poll_once(Pin::new(other)).is_pending(), "an hour is not over");
        }
        group.bench_function(format!("enter and drop behind {waiting}"), |bencher| {
            bencher.iter(|| {
                let poll = poll_once(pin!(limiter.acquire()));
                assert!(poll.is_pending(), "an hour is not over");
            });
        });
        group.bench_function(format!("try_acquire behind {waiting}"), |bencher| {
            bencher.iter(|| black_box(&limiter).try_acquire());
        });
    }
    group.bench_function("a crowd of 10,000 enters and drops", |bencher| {
        let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
        assert!(limiter.try_acquire().is_ok(), "the first one is granted");
        let crowd = || (0..10_000).map(|_| limiter.acquire_owned(1)).collect::<Vec<_>>();
        bencher.iter_batched(
            crowd,
            |mut crowd| {
                for wait in &mut crowd {
                    assert!(poll_once(Pin::new(wait)).is_pending(), "an hour is not over");
                }
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// Polls a future with a no-op waker.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
        .configure_from_args();
    clocks(&mut criterion);
    smooth_bursty(&mut criterion);
    smooth_warming_up(&mut criterion);
    limiter(&mut criterion);
    queue(&mut criterion);
    criterion.final_summary();
}
