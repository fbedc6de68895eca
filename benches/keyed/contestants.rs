//! The compared limiters: ours, and governor with its default hasher and with ours.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use tidegate::{KeyedRateLimiter, Rate, TokenBucket};

const BILLION: u32 = 1_000_000_000;

/// The limit of each key in a case.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    /// Half of a burst so large that a key is not full again (as new) while the bench lasts.
    Plenty,
    /// So high for the demand that each key is full again (as new) when its next request arrives.
    Fresh,
    /// One permit per hour, which is already spent.
    Spent,
}

impl Limit {
    /// Returns the permits per hour, the burst, and the permits that are taken before the bench
    /// begins.
    fn numbers(self) -> [u32; 3] {
        match self {
            Limit::Plenty => [360_000, 4 * BILLION, 2 * BILLION],
            Limit::Fresh => [3_600_000_000, 10, 1],
            Limit::Spent => [1, 1, 1],
        }
    }
}

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

/// Spreads numbers over all 64 bits.
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
    /// The names, one behind the other.
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

    /// It looks up only `&String`, so the name is copied into a `String` that is made once.
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
    /// Makes this many keys known.
    pub(crate) fill: Box<dyn Fn(u64) + Sync>,
    /// Takes the rest of a key's permits.
    pub(crate) spend: Box<dyn Fn(u64) + Sync>,
    /// Makes a number of attempts, starting at an index of the sequence of keys. Returns how many
    /// were granted.
    pub(crate) attempts: Attempts<K>,
}

/// Creates ours with room for `keys` keys, then governor with its defaults.
pub(crate) fn contestants<K: Key>(keys: u64, limit: Limit) -> Vec<Contestant<K>> {
    vec![
        ours(keys, limit),
        governor::<K, std::hash::RandomState>("governor", limit),
        governor::<K, foldhash::quality::RandomState>("governor, our hasher", limit),
    ]
}

fn ours<K: Key>(keys: u64, limit: Limit) -> Contestant<K> {
    let [per_hour, burst, taken] = limit.numbers();
    let policy = TokenBucket::new(Rate::per_hour(per_hour.into()), burst);
    let max_keys = usize::try_from(keys).unwrap_or(usize::MAX);
    let limiter = KeyedRateLimiter::<K>::new(policy, max_keys);
    let (filled, spent) = (limiter.clone(), limiter.clone());
    Contestant {
        name: "ours",
        fill: Box::new(move |keys| {
            for key in 0..keys {
                filled.try_acquire_many(&K::owned(key), taken).expect("a new key is full");
            }
        }),
        spend: Box::new(move |key| {
            spent.try_acquire_many(&K::owned(key), burst - taken).expect("nothing else was taken");
        }),
        attempts: Box::new(move |asked, first, count| K::attempt_ours(&limiter, asked, first, count)),
    }
}

fn governor<K: Key, S>(name: &'static str, limit: Limit) -> Contestant<K>
where
    S: BuildHasher + Clone + Default + Send + Sync + 'static,
{
    let [per_hour, burst, taken] = limit.numbers();
    let number = |n| NonZeroU32::new(n).expect("more than none");
    let quota = governor::Quota::per_hour(number(per_hour)).allow_burst(number(burst));
    let limiter: Arc<Governor<K, S>> = Arc::new(governor::RateLimiter::dashmap_with_clock_and_hasher(
        quota,
        DefaultClock::default(),
        S::default(),
    ));
    let (filled, spent) = (limiter.clone(), limiter.clone());
    let take = move |limiter: &Governor<K, S>, key, permits| {
        let taken = limiter.check_key_n(&K::owned(key), number(permits));
        taken.expect("within the burst").expect("nothing else was taken");
    };
    Contestant {
        name,
        fill: Box::new(move |keys| (0..keys).for_each(|key| take(&filled, key, taken))),
        spend: Box::new(move |key| take(&spent, key, burst - taken)),
        attempts: Box::new(move |asked, first, count| K::attempt_governor(&limiter, asked, first, count)),
    }
}
