//! The list of all policies. A new policy is added here, in addition to its own file, the exports
//! of `policy/mod.rs` and `lib.rs`, and the imports of `policy/any/kind.rs` and
//! `policy/config/mod.rs`.

/// Calls the macro `$define` with its arguments and the list of all kinds of policies.
///
/// An entry is the type of the policy, and in braces its configuration:
///
/// - the name in a text;
/// - the fields, each of a type that implements `Field` in `policy/config/field.rs`. The rate is
///   one of them; in a text it comes first and without its name;
/// - a block that makes the policy of these fields. It may return a `ConfigError`;
/// - the values of these fields in the terms in force of a policy. A field that has its default
///   value is not set.
macro_rules! kinds {
    ($define:ident $arguments:tt) => {
        $define! { $arguments
            SmoothBursty {
                "smooth_bursty"
                fields {
                    /// The rate of permits.
                    rate: Rate,
                    /// The duration for which unused permits are stored:
                    /// [`SmoothBursty::max_burst`].
                    max_burst: Option<Duration>,
                    /// Whether the limiter starts with all stored permits:
                    /// [`SmoothBursty::start_full`].
                    start_full: bool,
                }
                build {
                    let mut policy = SmoothBursty::new(rate);
                    if let Some(span) = max_burst {
                        policy = policy.try_max_burst(span)?;
                    }
                    if start_full { policy.start_full() } else { policy }
                }
                read |policy| {
                    rate: policy.rate(),
                    max_burst: other_than(Duration::from_secs(1), span(policy.max_burst)),
                    start_full: policy.start_full,
                }
            }
            SmoothWarmingUp {
                "smooth_warming_up"
                fields {
                    /// The rate of permits.
                    rate: Rate,
                    /// The warm-up period: [`SmoothWarmingUp::new`].
                    warm_up: Duration,
                    /// The factor by which a permit costs more when cold, 3 unless it is set:
                    /// [`SmoothWarmingUp::try_new`].
                    cold_factor: Option<f64>,
                    /// Whether the limiter starts warm: [`SmoothWarmingUp::start_warm`].
                    start_warm: bool,
                    /// Whether idle time cools at once: [`SmoothWarmingUp::cool_at_once`].
                    cool_at_once: bool,
                }
                build {
                    let mut policy = SmoothWarmingUp::try_new(rate, warm_up, cold_factor.unwrap_or(3.0))?;
                    if start_warm {
                        policy = policy.start_warm();
                    }
                    if cool_at_once { policy.cool_at_once() } else { policy }
                }
                read |policy| {
                    rate: policy.rate(),
                    warm_up: span(policy.warm_up),
                    cold_factor: other_than(3.0, policy.cold_factor),
                    start_warm: policy.start_warm,
                    cool_at_once: policy.cool_at_once,
                }
            }
            TokenBucket {
                "token_bucket"
                fields {
                    /// The rate at which permits accrue.
                    rate: Rate,
                    /// The size of the bucket: [`TokenBucket::new`].
                    burst: u32,
                    /// The permits at the start: [`TokenBucket::start_with`].
                    start_with: Option<u32>,
                    /// Whether permits accrue all at once: [`TokenBucket::interval_refill`].
                    interval_refill: bool,
                    /// The offset from the periods of Unix time at which permits accrue:
                    /// [`TokenBucket::at_wall_clock`].
                    at_wall_clock: Option<Duration>,
                    /// The time by which requests may be early: [`TokenBucket::tolerance`].
                    tolerance: Option<Duration>,
                }
                build {
                    if burst == 0 {
                        let allowed = "above 0; a policy that grants nothing is deny_all".into();
                        return Err(ConfigError::Value { field: "burst", value: "0".into(), allowed });
                    }
                    let mut policy = TokenBucket::try_new(rate, burst)?;
                    if let Some(span) = tolerance {
                        policy = policy.tolerance(span)?;
                    }
                    if interval_refill {
                        policy = policy.interval_refill()?;
                    }
                    if let Some(offset) = at_wall_clock {
                        policy = policy.at_wall_clock(offset)?;
                    }
                    if let Some(permits) = start_with {
                        policy = policy.start_with(permits)?;
                    }
                    policy
                }
                read |policy| {
                    rate: policy.rate(),
                    burst: policy.bucket.burst_in_force(),
                    start_with: policy.bucket.starts_with(),
                    interval_refill: policy.bucket.terms().stepped && policy.bucket.wall_clock.is_none(),
                    at_wall_clock: policy.bucket.wall_clock,
                    tolerance: other_than(Duration::ZERO, span(policy.bucket.terms().tolerance)),
                }
            }
            LeakyBucket {
                "leaky_bucket"
                fields {
                    /// The rate at which permits leave.
                    rate: Rate,
                    /// The number of permits that leave without delay: [`LeakyBucket::nodelay`].
                    nodelay: Option<u32>,
                    /// The number of permits that may wait: [`LeakyBucket::capacity`].
                    capacity: Option<u32>,
                    /// The maximum wait of a request, instead of a capacity:
                    /// [`LeakyBucket::max_wait`].
                    max_wait: Option<Duration>,
                }
                build {
                    let policy = LeakyBucket::new(rate).nodelay(nodelay.unwrap_or(0));
                    match (capacity, max_wait) {
                        (Some(_), Some(_)) => return Err(ConfigError::Twice { field: "max_wait", other: "capacity" }),
                        (Some(permits), None) => policy.capacity(permits),
                        (None, Some(span)) => policy.max_wait(span),
                        (None, None) => policy,
                    }
                }
                read |policy| {
                    rate: policy.rate(),
                    nodelay: other_than(0, policy.bucket.terms().burst.saturating_sub(1)),
                    capacity: policy.room().0,
                    max_wait: policy.room().1,
                }
            }
            FixedWindow {
                "fixed_window"
                fields {
                    /// The limit, and the length of the window.
                    rate: Rate,
                    /// The offset from the periods of Unix time at which windows begin:
                    /// [`FixedWindow::at_wall_clock`].
                    at_wall_clock: Option<Duration>,
                    /// Whether a window begins with its first grant, instead of at a fixed time:
                    /// [`FixedWindow::from_first_grant`].
                    from_first_grant: bool,
                }
                build {
                    let policy = FixedWindow::try_new(rate)?;
                    match at_wall_clock {
                        Some(_) if from_first_grant => {
                            return Err(ConfigError::Twice { field: "from_first_grant", other: "at_wall_clock" });
                        }
                        Some(offset) => policy.at_wall_clock(offset),
                        None if from_first_grant => policy.from_first_grant(),
                        None => policy,
                    }
                }
                read |policy| {
                    rate: policy.window.whole_rate(u32::MAX),
                    at_wall_clock: policy.window.wall_clock.filter(|_| !policy.from_first_grant),
                    from_first_grant: policy.from_first_grant,
                }
            }
            SlidingWindow {
                "sliding_window"
                fields {
                    /// The limit, and the length of the window.
                    rate: Rate,
                    /// The number of cells of a window: [`SlidingWindow::new`].
                    cells: u16,
                    /// The offset from the periods of Unix time at which windows begin:
                    /// [`SlidingWindow::at_wall_clock`].
                    at_wall_clock: Option<Duration>,
                }
                build {
                    let policy = SlidingWindow::try_new(rate, cells)?;
                    match at_wall_clock {
                        Some(offset) => policy.at_wall_clock(offset),
                        None => policy,
                    }
                }
                read |policy| {
                    rate: policy.window.whole_rate(u32::MAX),
                    cells: policy.window.cells(),
                    at_wall_clock: policy.window.wall_clock,
                }
            }
            SlidingEstimate {
                "sliding_estimate"
                fields {
                    /// The limit, and the length of the window.
                    rate: Rate,
                    /// The offset from the periods of Unix time at which windows begin:
                    /// [`SlidingEstimate::at_wall_clock`].
                    at_wall_clock: Option<Duration>,
                }
                build {
                    let policy = SlidingEstimate::try_new(rate)?;
                    match at_wall_clock {
                        Some(offset) => policy.at_wall_clock(offset),
                        None => policy,
                    }
                }
                read |policy| {
                    rate: policy.window.whole_rate(u32::MAX),
                    at_wall_clock: policy.window.wall_clock,
                }
            }
            SlidingLog {
                "sliding_log"
                fields {
                    /// The limit, and the length of the window.
                    rate: Rate,
                    /// The largest limit that a later change may set:
                    /// [`SlidingLog::with_capacity`].
                    with_capacity: Option<u32>,
                }
                build {
                    let policy = SlidingLog::try_new(rate)?;
                    match with_capacity {
                        Some(permits) => policy.with_capacity(permits)?,
                        None => policy,
                    }
                }
                read |policy| {
                    rate: policy.window.whole_rate(policy.room),
                    with_capacity: Some(policy.room).filter(|room| *room > policy.needed_room()),
                }
            }
            Unlimited { "unlimited" fields {} build { Unlimited } read |_policy| {} }
            DenyAll { "deny_all" fields {} build { DenyAll } read |_policy| {} }
        }
    };
}

pub(super) use kinds;
