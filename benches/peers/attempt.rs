//! What does one attempt cost, granted or refused, with one thread or two on one limiter?
//!
//! Granted: a billion per second and a billion stored, so that all contestants grant every attempt.
//! Refused: one per hour, which is already spent. Nanoseconds of wall time per attempt of any
//! thread, median over short rounds.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Rate, RateLimiter, SmoothBursty};
use tokio::sync::Semaphore;

use crate::Options;
use crate::report::Row;
use crate::turns::{in_turns, median, round};

const HOUR: Duration = Duration::from_secs(3600);
const BILLION: u32 = 1_000_000_000;
/// Attempts of each thread in one round: half a millisecond, shorter than most disturbances.
const ROUND: u32 = 20_000;

/// A word on its own cache lines. It is the lower bound for a limiter, so no write to other data
/// may take away a line that is only read.
#[repr(align(128))]
struct Alone(AtomicU64);

/// A name, and a closure that makes a number of attempts and counts the grants.
type Contestant = (&'static str, Box<dyn Fn(u32) -> u32 + Sync>);

/// Makes the loop around one attempt part of the closure, so that only the round is a dynamic call.
fn contestant(name: &'static str, attempt: impl Fn() -> bool + Sync + 'static) -> Contestant {
    (name, Box::new(move |attempts| (0..attempts).map(|_| u32::from(attempt())).sum()))
}

/// Like `contestant`, with a batch of this size for each round.
///
/// The loop checks the result at once, like a caller. A result behind `black_box` is written to the
/// stack, where the address of the batch was before. Reading it back in other parts stalls the
/// processor for longer than a permit of a batch takes.
fn batches(name: &'static str, ours: RateLimiter, size: u32) -> Contestant {
    let round = move |attempts| {
        let mut batch = ours.batch(size);
        (0..attempts).map(|_| u32::from(black_box(black_box(&mut batch).try_acquire().is_ok()))).sum()
    };
    (name, Box::new(round))
}

/// A counter of the caller: no batch can be faster.
fn counter() -> Contestant {
    let round = |attempts: u32| {
        let mut left = attempts;
        let attempt = |_| {
            let left = black_box(&mut left);
            let less = left.checked_sub(1);
            *left = less.unwrap_or_default();
            u32::from(black_box(less.is_some()))
        };
        (0..attempts).map(attempt).sum()
    };
    ("floor (a counter of the caller)", Box::new(round))
}

pub(crate) fn granted(case: &'static str, threads: usize, options: &Options) -> Vec<Row> {
    let billion = NonZeroU32::MIN.saturating_add(BILLION - 1);
    let ours = RateLimiter::new(SmoothBursty::new(Rate::per_second(BILLION.into())).start_full());
    let governor = governor::RateLimiter::direct(governor::Quota::per_second(billion));
    let bucket = leaky_bucket::RateLimiter::builder()
        .max(BILLION as usize)
        .initial(BILLION as usize)
        .refill(BILLION as usize)
        .interval(Duration::from_secs(1))
        .build();
    let ratelimit = ratelimit::Ratelimiter::builder(BILLION.into())
        .max_tokens(BILLION.into())
        .initial_available(BILLION.into())
        .build()
        .expect("a plain rate");
    let semaphore = Semaphore::new(Semaphore::MAX_PERMITS);
    let (clock, word) = (quanta::Clock::new(), Alone(AtomicU64::new(0)));
    let (few, many) = (ours.clone(), ours.clone());
    let contestants = vec![
        contestant("ours", move || black_box(black_box(&ours).try_acquire()).is_ok()),
        batches("ours, in batches of 64", few, 64),
        batches("ours, in batches of 1024", many, 1024),
        counter(),
        contestant("governor", move || black_box(black_box(&governor).check()).is_ok()),
        contestant("leaky-bucket", move || black_box(black_box(&bucket).try_acquire(1))),
        contestant("ratelimit", move || black_box(black_box(&ratelimit).try_wait()).is_ok()),
        contestant("tokio Semaphore", move || match black_box(black_box(&semaphore).try_acquire()) {
            Ok(permit) => {
                permit.forget();
                true
            }
            Err(_) => false,
        }),
        contestant("floor (clock read + one CAS)", move || {
            let (clock, word) = black_box((&clock, &word.0));
            let now = clock.delta_as_nanos(0, clock.raw());
            let mut seen = word.load(Ordering::Relaxed);
            while let Err(newer) =
                word.compare_exchange_weak(seen, seen.max(now) + 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                seen = newer;
            }
            true
        }),
    ];
    measure(case, contestants, threads, ROUND, options)
}

pub(crate) fn refused(case: &'static str, threads: usize, options: &Options) -> Vec<Row> {
    let ours = RateLimiter::smooth_bursty(Rate::per_hour(1));
    let governor = governor::RateLimiter::direct(governor::Quota::per_hour(NonZeroU32::MIN));
    assert!(ours.try_acquire().is_ok() && governor.check().is_ok(), "the first one is granted");
    let bucket = leaky_bucket::RateLimiter::builder().max(1).initial(0).interval(HOUR).build();
    let ratelimit = ratelimit::Ratelimiter::builder(1)
        .period(HOUR)
        .max_tokens(1)
        .initial_available(0)
        .build()
        .expect("a plain rate");
    let semaphore = Semaphore::new(0);
    let (clock, word) = (quanta::Clock::new(), Alone(AtomicU64::new(u64::MAX)));
    let contestants = vec![
        contestant("ours", move || black_box(black_box(&ours).try_acquire()).is_ok()),
        contestant("governor", move || black_box(black_box(&governor).check()).is_ok()),
        contestant("leaky-bucket", move || black_box(black_box(&bucket).try_acquire(1))),
        contestant("ratelimit", move || black_box(black_box(&ratelimit).try_wait()).is_ok()),
        contestant("tokio Semaphore", move || black_box(black_box(&semaphore).try_acquire()).is_ok()),
        contestant("floor (clock read + one load)", move || {
            let (clock, word) = black_box((&clock, &word.0));
            black_box(clock.delta_as_nanos(0, clock.raw()) >= word.load(Ordering::Relaxed))
        }),
    ];
    measure(case, contestants, threads, 0, options)
}

/// Each contestant must grant `grants` of each thread's attempts in a round.
fn measure(
    case: &'static str,
    mut contestants: Vec<Contestant>,
    threads: usize,
    grants: u32,
    options: &Options,
) -> Vec<Row> {
    if let Some(only) = &options.only {
        contestants.retain(|(name, _)| name.starts_with(only.as_str()));
    }
    let mut samples = vec![Vec::new(); contestants.len()];
    // The first two turns warm up caches and branch predictors.
    in_turns(contestants.len(), if options.quick { 33 } else { 203 }, |index, repetition| {
        let (name, attempts) = &contestants[index];
        let (granted, wall) = round(attempts.as_ref(), threads, ROUND);
        assert!(granted.iter().all(|granted| *granted == grants), "{name} granted {granted:?} of {ROUND}");
        if repetition >= 2 {
            samples[index].push(wall.as_nanos() as f64 / (f64::from(ROUND) * threads as f64));
        }
    });
    let medians: Vec<_> = samples.into_iter().map(median).collect();
    let row = |(&(peer, _), &peer_value): (&Contestant, &f64)| Row {
        case,
        unit: "ns per attempt",
        ours: medians[0],
        peer,
        peer_value,
    };
    contestants.iter().zip(&medians).skip(1).map(row).collect()
}
