//! The options of an `Obey`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate::{Clock, DefaultClock, Nanos};

use super::costs::Count;
use super::pace::Pace;
use crate::Unit;
use crate::read::{DEFAULT_MAX_PAUSE, Reader, ServerLimit};

/// The time at which each clock begins: a year. A call that moves to another limiter may have begun
/// before the clock of that limiter, and its beginning must be a time, too.
const BEGINNING: Nanos = Nanos::new(365 * 24 * 3600 * 1_000_000_000);

/// The options of an [`Obey`](super::Obey). See [`Obey::with_options`](super::Obey::with_options).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::obey::Options;
/// use tidegate_http::read::{Reader, Vendor};
///
/// let options = Options::new()
///     .reader(Reader::of(Vendor::GitHub))
///     .max_pause(Duration::from_secs(3600)) // its limits are per hour
///     .member("core", "requests");
/// ```
#[derive(Clone)]
#[must_use = "options do nothing unless they are given to an `Obey`"]
pub struct Options {
    pub(super) reader: Reader,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) max_pause: Duration,
    pub(super) back_off: Duration,
    pub(super) jitter: f64,
    names: Vec<(String, String)>,
    refusal: Option<Refusals>,
    pub(super) paces: Vec<Pace>,
}

type Refusals = Arc<dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync>;

impl Options {
    /// Creates the default options: the reader of any API, a maximum pause of ten minutes, a
    /// back-off of one second, and a jitter of a tenth.
    pub fn new() -> Self {
        Self {
            reader: Reader::auto(),
            clock: Arc::new(DefaultClock::new()),
            max_pause: DEFAULT_MAX_PAUSE,
            back_off: Duration::from_secs(1),
            jitter: 0.1,
            names: Vec::new(),
            refusal: None,
            paces: Vec::new(),
        }
    }

    /// Returns the time of the clock, which is at least [`BEGINNING`].
    pub(super) fn now(&self) -> Nanos {
        self.clock.now().saturating_add(BEGINNING)
    }

    /// Sets the reader of the responses.
    pub fn reader(self, reader: Reader) -> Self {
        Self { reader, ..self }
    }

    /// Sets the clock that measures resets. It should be the clock of the limiter.
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Sets the maximum pause. If a server asks for a longer one, the client calls it again after
    /// this time. The jitter is added to the maximum pause.
    pub fn max_pause(self, max_pause: Duration) -> Self {
        Self { max_pause, ..self }
    }

    /// Sets the pause after the first refusal without a time. The pause doubles with each further
    /// refusal, up to the maximum pause. If the [`Reader`] knows that an API asks for a longer
    /// first pause, the longer one counts.
    pub fn back_off(self, first: Duration) -> Self {
        Self { back_off: first, ..self }
    }

    /// Sets the largest share of a pause that is added to it at random, so that clients do not all
    /// return at the same time. It is drawn once for all responses to calls in flight together. A
    /// share below 0 counts as 0, a share above 1 counts as 1, and NaN counts as 0.
    pub fn jitter(self, part: f64) -> Self {
        Self { jitter: if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }, ..self }
    }

    /// Maps a limit that the server names to a member of the limiter. A single limiter has one
    /// member, `limit`. A mapping to an unknown member is ignored.
    ///
    /// Without a mapping, a limit belongs to the member of its name, or else to the member that is
    /// named after its unit: `requests`, `tokens`, `bytes`, `points`. A limit of requests also
    /// belongs to a single limiter. Other limits lower no member. Nor do limits that count a part
    /// of the tokens, such as `input-tokens`. The comparison of names ignores case.
    pub fn member(mut self, server: impl Into<String>, member: impl Into<String>) -> Self {
        self.names.push((server.into(), member.into()));
        self
    }

    /// Sets which further responses are refusals, although their status and headers do not say so:
    /// every 503 of a server, for example. The function is called for each response that is given
    /// to [`Call::obey`](super::Call::obey). So for a gRPC call it is called with the headers, and
    /// again with the trailers and status 200.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tidegate_http::obey::Options;
    ///
    /// let options = Options::new()
    ///     .refusal(|status, _| status == StatusCode::SERVICE_UNAVAILABLE);
    /// ```
    pub fn refusal(self, is: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static) -> Self {
        Self { refusal: Some(Arc::new(is)), ..self }
    }

    /// Changes the rate of the limiter, or of one of its members, according to the server's
    /// responses. By default, the limits that a server reports change no rate.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.paces.push(pace);
        self
    }

    pub(super) fn is_refusal(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.refusal.as_ref().is_some_and(|is| is(status, headers))
    }

    /// Returns the unit in which calls are charged for this limit, or `None` if it is unknown.
    pub(super) fn count(&self, limit: &ServerLimit, members: &[String]) -> Option<Count> {
        let count_of = |name: &str| {
            members.iter().position(|member| member.eq_ignore_ascii_case(name)).map(Count::of_member)
        };
        if let Some(name) = &limit.name {
            let mapped = self.names.iter().find(|(server, _)| server.eq_ignore_ascii_case(name));
            if let Some(count) = mapped.and_then(|(_, member)| count_of(member)).or_else(|| count_of(name)) {
                return Some(count);
            }
        }
        match limit.unit? {
            Unit::Requests => {
                let single = (members.len() == 1).then_some(Count::of_member(0));
                count_of("requests").or(single).or(Some(Count::CALLS))
            }
            Unit::Bytes => count_of("bytes").or_else(|| count_of(Unit::Bytes.as_str())),
            Unit::Concurrency => None,
            // `input-tokens` are a part of the tokens that a call costs.
            Unit::Tokens if limit.name.as_ref().is_some_and(|name| name.ends_with("-tokens")) => None,
            unit @ (Unit::Tokens | Unit::Points) => count_of(unit.as_str()),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("reader", &self.reader)
            .field("clock", &self.clock)
            .field("max_pause", &self.max_pause)
            .field("back_off", &self.back_off)
            .field("jitter", &self.jitter)
            .field("names", &self.names)
            .field("paces", &self.paces)
            .finish_non_exhaustive()
    }
}
