//! Headers of one limit, gathered and converted into [`ServerLimit`]s.

use std::time::Duration;

use super::MAX_LIMITS;
use super::categories;
use super::count::{self, Count};
use super::draft::{self, NumberedPolicy};
use super::limit::{ServerLimit, later};
use super::merge::{Found, merge};
use super::name::{Field, Name, label_unit, label_window};
use super::number;
use super::pairs;
use super::time::{self, Clock, SECOND, Window};
use crate::{Unit, When};

/// The headers that share a family, a spelling and a label.
#[derive(Debug, Default)]
struct Group {
    family: String,
    spelling: String,
    label: String,
    limits: Vec<Count>,
    remaining: Vec<Count>,
    used: Vec<Count>,
    /// The counts are shares of an unknown limit.
    is_share: bool,
    resets: Vec<Reset>,
    window: Option<Duration>,
    /// The window is a number, and the name of its header has no unit.
    plain_window: bool,
    /// The unit of the window, if it has its own header.
    time_unit: Option<Duration>,
    name: Option<String>,
    scope: Option<String>,
    /// Limits of one header, and the texts of their resets.
    states: Vec<(ServerLimit, Option<String>)>,
    policies: Vec<ServerLimit>,
    numbered: Vec<NumberedPolicy>,
}

#[derive(Debug)]
struct Reset {
    text: String,
    /// The window next to the reset: `30;w=60`.
    window: Option<Duration>,
    unit: Option<Duration>,
    from_now: bool,
    field_first: bool,
}

/// Gathers headers by their names.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Group>,
    clock: Clock,
}

impl Groups {
    pub(super) fn new(clock: Clock) -> Self {
        Self { groups: Vec::new(), clock }
    }

    /// Adds a header. Limits beyond [`MAX_LIMITS`] are left out.
    pub(super) fn add(&mut self, name: Name, value: &str) {
        let same =
            |g: &Group| g.family == name.family && g.spelling == name.spelling && g.label == name.label;
        let at = match self.groups.iter().position(same) {
            Some(at) => at,
            None if self.groups.len() >= 2 * MAX_LIMITS => return,
            None => {
                let Name { family, spelling, label, .. } = name.clone();
                self.groups.push(Group { family, spelling, label, ..Group::default() });
                self.groups.len() - 1
            }
        };
        self.groups[at].add(&name, value.trim(), self.clock);
    }

    /// Converts the headers into limits. `retry_after` is the time to retry that the response
    /// reports. Returns the limits, and the reset of a group of limits that has no counts.
    pub(super) fn finish(self, retry_after: Option<When>) -> (Vec<ServerLimit>, Option<When>) {
        let Groups { groups, mut clock } = self;
        clock.retry_after = retry_after;
        // A limit without a label takes the name of its resource or bucket.
        let named: Vec<(String, String)> =
            groups.iter().filter_map(|g| Some((g.family.clone(), g.name.clone()?))).collect();
        let scoped: Vec<(String, String)> =
            groups.iter().filter_map(|g| Some((g.family.clone(), g.scope.clone()?))).collect();
        let of = |pairs: &[(String, String)], family: &str| {
            pairs.iter().find(|(f, _)| f == family).map(|(_, value)| value.clone())
        };
        let of_group = |group: &Group| {
            let with_names = |policy: &NumberedPolicy| (group.family.clone(), group.label.clone(), *policy);
            group.numbered.iter().map(with_names).collect::<Vec<_>>()
        };
        let policies: Vec<_> = groups.iter().flat_map(of_group).take(4 * MAX_LIMITS).collect();
        // The window of the policy with this number, or the longest window of several policies.
        let window_of = |limit: Option<f64>| {
            let same = policies.iter().filter(|(.., policy)| Some(policy.limit) == limit);
            same.filter_map(|(.., policy)| policy.window).max()
        };
        let mut found: Vec<Found> = Vec::new();
        for group in groups {
            let (family, label) = (group.family.clone(), group.label.clone());
            let with_names = |limit| Found { family: family.clone(), label: label.clone(), limit };
            found.extend(group.limits(&window_of, clock).into_iter().map(with_names));
        }
        found.truncate(4 * MAX_LIMITS);
        // A policy without a name belongs to the limit with the same number, even if that limit has
        // other headers.
        for (family, label, policy) in policies {
            let same = |f: &Found| {
                f.limit.limit == Some(policy.limit)
                    && (f.limit.window.is_none() || f.limit.window == policy.window)
            };
            let own = found.iter().position(|f| f.family == family && f.label == label && same(f));
            if let Some(at) = own.or_else(|| found.iter().position(same)) {
                found[at].limit.window = policy.window;
            } else {
                let (unit, limit, window) = (Some(Unit::Requests), Some(policy.limit), policy.window);
                let limit = ServerLimit { unit, limit, window, ..ServerLimit::default() };
                found.push(Found { family, label, limit });
            }
        }
        for Found { family, label, limit } in &mut found {
            if label.is_empty() && limit.name.is_none() {
                limit.name = of(&named, family);
            }
            limit.scope = limit.scope.take().or_else(|| of(&scoped, family));
            if limit.unit == Some(Unit::Requests) && limit.name.as_deref().is_some_and(counts_points) {
                limit.unit = Some(Unit::Points);
            }
        }
        merge(found)
    }
}

impl Group {
    fn add(&mut self, name: &Name, value: &str, clock: Clock) {
        match name.field {
            Field::Limit => self.limit(value, clock),
            Field::Remaining => self.remaining.extend(count::counts(value)),
            Field::Used => self.used.extend(count::counts(value)),
            // A number above 2 is a percentage, or means something else.
            Field::Share => {
                let shares = count::counts(value).into_iter().filter(|share| share.value <= 2.0);
                self.used.extend(shares.map(|share| Count { out_of: Some(1.0), ..share }));
                self.is_share = true;
            }
            Field::Reset if self.resets.len() < 16 => self.add_resets(name, value),
            Field::Window if self.window.is_none() => {
                self.window = draft::window(value, name.unit);
                self.plain_window = name.unit.is_none() && number::decimal(value).is_some();
            }
            Field::TimeUnit => self.time_unit = self.time_unit.or(time::unit_of_time(value)),
            Field::Name => self.name = Some(value.to_owned()).filter(|n| !n.is_empty() && n.len() <= 128),
            Field::Scope => self.scope = Some(value.to_owned()).filter(|n| !n.is_empty() && n.len() <= 128),
            Field::Policy => {
                let policies = draft::policies(value);
                if policies.is_empty() {
                    self.numbered.extend(draft::numbered_policies(value));
                }
                self.policies.extend(policies);
            }
            Field::Whole => self.whole(value, clock),
            Field::Reset | Field::Window | Field::Retry | Field::Wait | Field::Mark => {}
        }
        // A header that is repeated many times adds no more.
        for counts in [&mut self.limits, &mut self.remaining, &mut self.used] {
            counts.truncate(MAX_LIMITS);
        }
        self.states.truncate(MAX_LIMITS);
        self.policies.truncate(MAX_LIMITS);
        self.numbered.truncate(MAX_LIMITS);
    }

    fn add_resets(&mut self, name: &Name, value: &str) {
        let reset = |(text, window): (&str, Option<Duration>)| Reset {
            text: text.trim().to_owned(),
            window,
            unit: name.unit,
            from_now: name.from_now,
            field_first: name.field_first,
        };
        // A date can contain a comma; a list consists only of numbers, which can have windows.
        let member = |part| {
            let (number, window) = match str::split_once(part, ';') {
                Some((number, params)) => (number, Some(count::window_of(params)?)),
                None => (part, None),
            };
            number::decimal(number).map(|_| (number, window))
        };
        match count::members(value).take(16).map(member).collect::<Option<Vec<_>>>() {
            Some(members) => self.resets.extend(members.into_iter().map(reset)),
            None => self.resets.push(reset((value, None))),
        }
    }

    /// Reads `100`, `600,30000`, `10, 10;w=1` of drafts up to -03, or `100;w=21600` of Docker Hub.
    fn limit(&mut self, value: &str, clock: Clock) {
        let counts = count::counts(value);
        if counts.is_empty() {
            // AspNetCoreRateLimit sends the window as the limit: `1m`.
            self.window = self.window.or(time::window(value));
            self.states.extend(pairs::limits(value, clock));
        }
        for count in counts {
            if count.out_of.is_some() {
                self.used.push(count);
            } else if count.is_policy && !self.limits.is_empty() {
                self.numbered.push(draft::numbered(count));
            } else {
                self.limits.push(count);
            }
        }
    }

    fn whole(&mut self, value: &str, clock: Clock) {
        let without_text = |limit| (limit, None);
        let mut states: Vec<_> = draft::states(value).into_iter().map(without_text).collect();
        if states.is_empty() {
            states = pairs::limits(value, clock);
        }
        // With a label, `5:user:name` can be a key.
        if states.is_empty() && self.label.is_empty() {
            states = categories::limits(value).into_iter().map(without_text).collect();
        }
        if !states.is_empty() {
            self.states.extend(states);
        } else if self.label.is_empty() || value.matches(':').count() > 1 {
            // With a label, a plain number can mean anything, but `8:10:60` is a limit. Salesforce
            // separates its fractions with semicolons.
            let value = if value.contains('/') { value.replace(';', ",") } else { value.to_owned() };
            let (used, limits): (Vec<_>, Vec<_>) =
                count::counts(&value).into_iter().partition(|count| count.out_of.is_some());
            self.used.extend(used);
            self.limits.extend(limits);
        }
    }

    /// Converts the headers of the group into limits. `window_of` returns the window of the policy
    /// with a number, which may be in a header of another group.
    fn limits(
        mut self,
        window_of: &dyn Fn(Option<f64>) -> Option<Duration>,
        clock: Clock,
    ) -> Vec<ServerLimit> {
        let read_again = |(mut limit, text): (ServerLimit, Option<String>)| {
            let of_policy = || window_of(limit.limit).map(Window::OfPolicy);
            let window = limit.window.map(Window::Other).or_else(of_policy);
            limit.reset = text.and_then(|text| clock.reset(&text, window)).or(limit.reset);
            limit
        };
        let states = std::mem::take(&mut self.states).into_iter().map(read_again).collect();
        let mut limits = draft::join(states, std::mem::take(&mut self.policies));
        let counted = self.by_windows(clock);
        limits.extend(if counted.is_empty() { self.counted(window_of, clock) } else { counted });
        limits
    }

    /// Joins the members of lists with equal windows: `20, 20;w=1, 300;w=60` of the limit and
    /// `19, 19;w=1, 299;w=60` of the remaining permits. A member without a window repeats one of
    /// the others. Returns nothing if the remaining permits are not such a list.
    fn by_windows(&self, clock: Clock) -> Vec<ServerLimit> {
        if self.remaining.len() < 2 {
            return Vec::new();
        }
        let limits = || self.limits.iter().cloned().map(draft::numbered).chain(self.numbered.iter().copied());
        let listed = self.resets.iter().any(|reset| reset.window.is_some());
        let members = self.remaining.iter().filter(|left| left.is_policy && left.window.is_some());
        let member = |(i, left): (usize, &Count)| {
            let (window, own) = (left.window, |reset: &&Reset| reset.window == left.window);
            ServerLimit {
                name: Some(self.label.clone()).filter(|l| !l.is_empty()),
                unit: self.unit(),
                limit: limits().find(|limit| limit.window == window).map(|limit| limit.limit),
                remaining: Some(left.value),
                reset: match self.resets.iter().find(own) {
                    Some(reset) => self.read_reset(reset, clock, window.map(Window::OfPolicy)),
                    None if i == 0 && !listed => self.reset(0, clock, window.map(Window::OfPolicy)),
                    None => None,
                },
                window,
                ..ServerLimit::default()
            }
        };
        members.enumerate().map(member).collect()
    }

    /// Converts counts into limits: one limit, or one for each member of lists of equal length.
    fn counted(&self, window_of: &dyn Fn(Option<f64>) -> Option<Duration>, clock: Clock) -> Vec<ServerLimit> {
        let lists = [&self.limits, &self.remaining, &self.used];
        let longest = lists.iter().map(|l| l.len()).max().unwrap_or(0);
        let parallel = lists.iter().all(|l| l.is_empty() || l.len() == longest);
        let members = if parallel { longest.max(1) } else { 1 };
        let limit = |i: usize| {
            let [limit, remaining, used] = lists.map(|list| list.get(i));
            let of = |count: &Count| {
                Some((if count.is_policy { Window::OfPolicy } else { Window::Other })(count.window?))
            };
            let of_count = [limit, remaining, used].into_iter().flatten().find_map(of);
            let own = || self.own_window().or_else(|| label_window(&self.label)).or_else(|| self.rate());
            let window = of_count.or_else(|| own().map(Window::Other));
            let out_of = |count: Option<&Count>| count.and_then(|c| c.out_of);
            let most = limit.map(|c| c.value).or(out_of(used)).or(out_of(remaining));
            // If the lists do not belong together, the fewest units left is the cautious reading.
            let fewest = || self.remaining.iter().map(|c| c.value).reduce(f64::min);
            let left = if parallel { remaining.map(|c| c.value) } else { fewest() };
            let banned = used.and_then(|c| c.penalty);
            let left = left.or_else(|| Some((most? - used?.value).max(0.0)));
            let names = [limit, remaining, used].into_iter().flatten().find_map(|count| count.name.clone());
            ServerLimit {
                name: names.or_else(|| Some(self.label.clone()).filter(|l| !l.is_empty())),
                unit: self.unit(),
                limit: most,
                remaining: if banned.is_some() { Some(0.0) } else { left },
                reset: self
                    .reset(i, clock, window.or_else(|| window_of(most).map(Window::OfPolicy)))
                    .or(banned.map(When::In)),
                window: window.map(Window::length),
                ..ServerLimit::default()
            }
        };
        (0..members).map(limit).collect()
    }

    /// Returns the window that has its own header, in its own unit. Without a unit, it is in
    /// milliseconds if the reset is.
    fn own_window(&self) -> Option<Duration> {
        let in_milliseconds =
            |reset: &Reset| reset.text.len() == 13 && number::decimal(&reset.text).is_some();
        if let Some(unit) = self.time_unit {
            let times = self.window.filter(|_| self.plain_window).map_or(1, |window| window.as_secs());
            return unit.checked_mul(u32::try_from(times).ok()?);
        }
        let window = self.window?;
        let plain = self.plain_window && window >= 1000 * SECOND;
        Some(if plain && self.resets.iter().any(in_milliseconds) { window / 1000 } else { window })
    }

    fn unit(&self) -> Option<Unit> {
        match (self.family.as_str(), label_unit(&self.label)) {
            _ if self.is_share => None,
            // Kong's plugin for language models counts tokens.
            ("ai", Some(Unit::Requests)) => Some(Unit::Tokens),
            (_, unit) => unit,
        }
    }

    /// Returns the window of Amazon's Selling Partner API, whose limit is a rate per second.
    fn rate(&self) -> Option<Duration> {
        (self.family == "amzn" && !self.limits.is_empty()).then_some(SECOND)
    }

    /// Reads the resets of one member, or all resets if there are not as many as members. A reset
    /// from now is more exact than an absolute timestamp; among resets of one kind the latest
    /// counts.
    fn reset(&self, i: usize, clock: Clock, window: Option<Window>) -> Option<When> {
        let members = self.limits.len().max(self.remaining.len()).max(self.used.len());
        let several = members > 1 && members == self.resets.len();
        let own = if several { self.resets.get(i..=i)? } else { &self.resets[..] };
        let read = |reset: &Reset| self.read_reset(reset, clock, window);
        let from_now = own.iter().filter(|r| r.from_now).filter_map(read).reduce(later);
        from_now.or_else(|| own.iter().filter_map(read).reduce(later))
    }

    fn read_reset(&self, reset: &Reset, clock: Clock, window: Option<Window>) -> Option<When> {
        match reset.unit {
            Some(unit) => clock.retry_after(&reset.text, unit),
            None if reset.from_now => clock.retry_after(&reset.text, SECOND),
            None => clock.reset(&reset.text, window.or_else(|| self.minute(reset))),
        }
    }

    /// Returns a window of a minute for names in OpenAI's form, whose limits are per minute. OpenAI
    /// writes durations. A plain number comes from Azure: seconds, or milliseconds if it is beyond
    /// the minute.
    fn minute(&self, reset: &Reset) -> Option<Window> {
        let openai = reset.field_first && matches!(self.label.as_str(), "requests" | "tokens");
        openai.then_some(Window::Other(60 * SECOND))
    }
}

/// Returns whether a limit of this name counts points. Only the documentation says so, for GitHub's
/// GraphQL and for apps of Jira and Confluence.
fn counts_points(name: &str) -> bool {
    name == "graphql" || name.ends_with("-app-quota")
}
