//! Who is compared: ours, and governor with the hasher it has and with the one we have.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use tidegate::{KeyedRateLimiter, Rate, TokenBucket};

const BILLION: u32 = 1_000_000_000;

/// Permits that a key can save up: so many that it is not as good as new for as long as the bench lasts, once half of them are spent.
const BURST: u32 = 4 * BILLION;

/// Permits of a key per second: few beside what the bench asks for.
const RATE: u32 = 1000;

/// Keys as a program gets them: from a request, one after the other.
pub(crate) trait Key: std::hash::Hash + Eq + Clone + Send + Sync + 'static {
    /// The keys of a sequence of requests.
    type Asked: Send + Sync;
    fn encode(numbers: &[u64]) -> Self::Asked;
    fn owned(number: u64) -> Self;
    fn attempt_ours(limiter: &KeyedRateLimiter<Self>, asked: &Self::Asked, first: usize, count: u32) -> u32;
    fn attempt_governor<S: BuildHasher + Clone>(
        limiter: &Governor<Self, S>,
        asked: &Self::Asked,
        first: usize,
        count: u32,
    ) -> u32;
}

pub(crate) type Governor<K, S> = governor::RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>;

/// Spreads numbers over all of 64 bits.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (number ^ (number >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

impl Key for u64 {
    type Asked = Vec<u64>;

    fn encode(numbers: &[u64]) -> Vec<u64> {
        numbers.iter().map(|number| mix(*number)).collect()
    }

    fn owned(number: u64) -> u64 {
        mix(number)
    }

    fn attempt_ours(limiter: &KeyedRateLimiter<u64>, asked: &Vec<u64>, first: usize, count: u32) -> u32 {
        let keys = &asked[first..first + count as usize];
        keys.iter().map(|key| u32::from(black_box(limiter.try_acquire(key)).is_ok())).sum()
    }

    fn attempt_governor<S: BuildHasher + Clone>(
        limiter: &Governor<u64, S>,
        asked: &Vec<u64>,
        first: usize,
        count: u32,
    ) -> u32 {
        let keys = &asked[first..first + count as usize];
        keys.iter().map(|key| u32::from(black_box(limiter.check_key(key)).is_ok())).sum()
    }
}

/// The length of each name.
const NAME: usize = 15;

impl Key for String {
    /// One behind the other.
    type Asked = String;

    fn encode(numbers: &[u64]) -> String {
        numbers.iter().map(|number| String::owned(*number)).collect()
    }

    fn owned(number: u64) -> String {
        format!("user-{number:010}")
    }

    fn attempt_ours(limiter: &KeyedRateLimiter<String>, asked: &String, first: usize, count: u32) -> u32 {
        let name = |i: usize| &asked[i * NAME..(i + 1) * NAME];
        (first..first + count as usize)
            .map(|i| u32::from(black_box(limiter.try_acquire(name(i))).is_ok()))
            .sum()
    }

    /// It looks up `&String` only, so the name is copied into one that is made once.
    fn attempt_governor<S: BuildHasher + Clone>(
        limiter: &Governor<String, S>,
        asked: &String,
        first: usize,
        count: u32,
    ) -> u32 {
        let mut name = String::with_capacity(NAME);
        (first..first + count as usize)
            .map(|i| {
                name.clear();
                name.push_str(&asked[i * NAME..(i + 1) * NAME]);
                u32::from(black_box(limiter.check_key(&name)).is_ok())
            })
            .sum()
    }
}

type Attempts<K> = Box<dyn Fn(&<K as Key>::Asked, usize, u32) -> u32 + Sync>;

pub(crate) struct Contestant<K: Key> {
    pub(crate) name: &'static str,
    /// Makes so many keys known.
    pub(crate) fill: Box<dyn Fn(u64) + Sync>,
    /// Takes what a key has left.
    pub(crate) spend: Box<dyn Fn(u64) + Sync>,
    /// So many attempts, from one of those asked for on. Returns how many were granted.
    pub(crate) attempts: Attempts<K>,
}

/// Ours with room for so many keys, then governor as it is.
pub(crate) fn contestants<K: Key>(keys: u64) -> Vec<Contestant<K>> {
    vec![
        ours(keys),
        governor::<K, std::hash::RandomState>("governor"),
        governor::<K, foldhash::fast::RandomState>("governor, our hasher"),
    ]
}

fn ours<K: Key>(keys: u64) -> Contestant<K> {
    let policy = TokenBucket::new(Rate::per_second(RATE.into()), BURST);
    let max_keys = usize::try_from(keys).unwrap_or(usize::MAX);
    let limiter = KeyedRateLimiter::<K>::new(policy, max_keys);
    let (filled, spent) = (limiter.clone(), limiter.clone());
    Contestant {
        name: "ours",
        fill: Box::new(move |keys| {
            for key in 0..keys {
                filled.try_acquire_many(&K::owned(key), BURST / 2).expect("a new key is full");
            }
        }),
        spend: Box::new(move |key| {
            spent.try_acquire_many(&K::owned(key), BURST / 2).expect("nothing else was taken");
        }),
        attempts: Box::new(move |asked, first, count| K::attempt_ours(&limiter, asked, first, count)),
    }
}

fn governor<K: Key, S>(name: &'static str) -> Contestant<K>
where
    S: BuildHasher + Clone + Default + Send + Sync + 'static,
{
    let [rate, burst, half] = [RATE, BURST, BURST / 2].map(|n| NonZeroU32::new(n).expect("more than none"));
    let quota = governor::Quota::per_second(rate).allow_burst(burst);
    let limiter: Arc<Governor<K, S>> = Arc::new(governor::RateLimiter::dashmap_with_clock_and_hasher(
        quota,
        DefaultClock::default(),
        S::default(),
    ));
    let (filled, spent) = (limiter.clone(), limiter.clone());
    Contestant {
        name,
        fill: Box::new(move |keys| {
            for key in 0..keys {
                filled
                    .check_key_n(&K::owned(key), half)
                    .expect("within the burst")
                    .expect("a new key is full");
            }
        }),
        spend: Box::new(move |key| {
            spent
                .check_key_n(&K::owned(key), half)
                .expect("within the burst")
                .expect("nothing else was taken");
        }),
        attempts: Box::new(move |asked, first, count| K::attempt_governor(&limiter, asked, first, count)),
    }
}
