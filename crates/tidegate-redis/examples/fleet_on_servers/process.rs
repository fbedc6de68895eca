//! One of the processes: it takes permits, and records the grants.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::AnyLimiter;
use tidegate_redis::{Store, WhileAway};

use crate::check::Bound;

/// The number of tasks that take permits, each task one permit after the other.
const TASKS: u64 = 50;

/// The job of a process.
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) tags: u64,
    pub(crate) limit: Bound,
    /// Whether it leases permits. Then its grants have the times of their decisions.
    pub(crate) is_leased: bool,
    /// The Unix time at which it begins.
    pub(crate) begin: Duration,
    pub(crate) seconds: f64,
    pub(crate) log: PathBuf,
}

/// The result of a job. Times are Unix times in microseconds.
#[derive(Default)]
pub(crate) struct Log {
    /// The tag, the server's time, and the permits.
    pub(crate) grants: Vec<(u64, i64, u64)>,
    /// The times at which the share of this process granted a permit.
    pub(crate) degraded: Vec<i64>,
    /// The maximum wait.
    pub(crate) longest: Duration,
}

impl Job {
    /// Returns the job of this process; `None` for the process that starts the others.
    pub(crate) fn from_args() -> Option<Job> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [mode, url, tags, per_second, burst, leased, begin, seconds, log] = &args[..] else {
            return None;
        };
        let limit = Bound { per_second: per_second.parse().ok()?, burst: burst.parse().ok()? };
        let begin = Duration::from_micros(begin.parse().ok()?);
        let (tags, seconds) = (tags.parse().ok()?, seconds.parse().ok()?);
        let (url, is_leased, log) = (url.clone(), leased == "leased", log.into());
        (mode == "process").then_some(Job { url, tags, limit, is_leased, begin, seconds, log })
    }

    pub(crate) fn args(&self) -> [String; 9] {
        let Job { url, tags, limit, is_leased, begin, seconds, log } = self;
        [
            "process".into(),
            url.clone(),
            tags.to_string(),
            limit.per_second.to_string(),
            limit.burst.to_string(),
            if *is_leased { "leased" } else { "exact" }.into(),
            begin.as_micros().to_string(),
            seconds.to_string(),
            log.display().to_string(),
        ]
    }
}

pub(crate) fn run(job: &Job) -> Result<(), Box<dyn Error>> {
    let log = Arc::new(Mutex::new(Log::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(take(job, &log))?;
    let log = log.lock().map_err(|_| "a task panicked")?;
    log.write(&job.log)?;
    Ok(())
}

async fn take(job: &Job, log: &Arc<Mutex<Log>>) -> Result<(), Box<dyn Error>> {
    let store = Store::builder(&job.url).while_away(WhileAway::Share).open()?;
    let is_leased = job.is_leased;
    if !is_leased {
        let grants = log.clone();
        store.log_grants(move |key, due, permits| {
            let tag = key.split(['{', '}']).nth(1).and_then(|tag| tag.parse().ok()).unwrap_or(0);
            grants.lock().expect("no task panics").grants.push((tag, due, permits));
        });
    }
    let Bound { per_second, burst } = job.limit;
    let policy: tidegate::PolicyConfig = format!("token_bucket {per_second}/s burst {burst}").parse()?;
    let mut tasks = Vec::new();
    let (begin, end) =
        (UNIX_EPOCH + job.begin, UNIX_EPOCH + job.begin + Duration::from_secs_f64(job.seconds));
    let limiters = (0..job.tags).map(|tag| {
        let limiter = store.limiter(tag.to_string()).limit("calls", policy.clone());
        if is_leased { limiter.leased() } else { limiter }.build().map(AnyLimiter::from)
    });
    let limiters: Vec<AnyLimiter> = limiters.collect::<Result<_, _>>()?;
    // On a busy machine the first replies may be late.
    while let Err(error) = store.check().await {
        if !error.is_away() || SystemTime::now() >= begin {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for task in 0..TASKS {
        let tag = task % job.tags;
        let (log, limiter) = (log.clone(), limiters[usize::try_from(tag)?].clone());
        tasks.push(tokio::spawn(async move {
            tokio::time::sleep(begin.duration_since(SystemTime::now()).unwrap_or_default()).await;
            while SystemTime::now() < end {
                let Ok(permits) = limiter.acquire().await else {
                    // While the store is unavailable, until the share has a permit again.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
                let mut log = log.lock().expect("no task panics");
                if permits.is_degraded() {
                    log.degraded.push(now);
                    continue;
                }
                log.longest = log.longest.max(permits.waited());
                if is_leased {
                    log.grants.push((tag, now, 1));
                }
            }
        }));
    }
    for task in tasks {
        task.await?;
    }
    Ok(())
}

impl Log {
    fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let mut text = format!("{}\n", self.longest.as_micros());
        for (tag, due, n) in &self.grants {
            writeln!(text, "{tag} {due} {n}")?;
        }
        for at in &self.degraded {
            writeln!(text, "{at}")?;
        }
        std::fs::write(path, text)?;
        Ok(())
    }

    pub(crate) fn read(path: &Path) -> Result<Log, Box<dyn Error>> {
        let text = std::fs::read_to_string(path)?;
        let mut lines = text.lines();
        let longest = Duration::from_micros(lines.next().ok_or("an empty log")?.parse()?);
        let mut log = Log { longest, ..Log::default() };
        for line in lines {
            match line.split(' ').collect::<Vec<_>>()[..] {
                [tag, due, n] => log.grants.push((tag.parse()?, due.parse()?, n.parse()?)),
                [at] => log.degraded.push(at.parse()?),
                _ => return Err("an unknown line".into()),
            }
        }
        Ok(log)
    }
}
