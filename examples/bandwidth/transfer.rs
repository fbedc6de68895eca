//! The connections, and the ways to limit them.

use std::error::Error;
use std::time::{Duration, Instant};

use async_speed_limit::Limiter;
use cpu_time::ProcessTime;
use tidegate::io::Throttled;
use tidegate::{AnyLimiter, Rate, RateLimiter, TokenBucket};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{Arguments, Course, Measured};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How the bytes are limited.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Plain,
    Tidegate,
    SpeedLimit,
}

/// A greedy connection has a buffer this many times as large as the others.
const GREEDY: usize = 16;

/// Transfers the bytes once, in a runtime of two threads.
pub(crate) fn run(arguments: &Arguments, way: Way) -> std::result::Result<Measured, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(runtime.block_on(transfer(arguments.clone(), way)).map_err(|error| error.to_string())?)
}

async fn transfer(arguments: Arguments, way: Way) -> Result<Measured> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    // No stored permits at the start, so that the total equals the rate from the beginning. The
    // bucket holds the permits that accrue in 20 ms.
    let policy = TokenBucket::new(Rate::per_second(arguments.rate.into()), arguments.rate / 50).start_empty();
    let tidegate = AnyLimiter::from(RateLimiter::new(policy));
    let speed_limit = <Limiter>::new(f64::from(arguments.rate));

    let mut readers: JoinSet<Result<(usize, Course)>> = JoinSet::new();
    let mut writers = JoinSet::new();
    let mut sockets = Vec::new();
    for _ in 0..arguments.connections {
        let (near, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        sockets.push((near?, accepted?.0));
    }
    let (begin, processor) = (Instant::now(), ProcessTime::now());
    let end = begin + Duration::from_secs(arguments.seconds.into());
    let each = arguments.bytes() / arguments.connections.max(1) as u64;
    for (index, (near, far)) in sockets.into_iter().enumerate() {
        let chunk = arguments.buffer as usize;
        let buffer = if index < arguments.greedy { GREEDY * chunk } else { chunk };
        readers.spawn(async move { Ok((index, read(far, chunk, begin).await?)) });
        match way {
            Way::Plain => writers.spawn(write(near, buffer, each, None)),
            Way::Tidegate => {
                let limited = Throttled::new(near).max_chunk(arguments.buffer).limit_writes(tidegate.clone());
                writers.spawn(write(limited, buffer, u64::MAX, Some(end)))
            }
            Way::SpeedLimit => {
                writers.spawn(write(speed_limit.clone().limit(near), buffer, u64::MAX, Some(end)))
            }
        };
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    let took = begin.elapsed();
    let mut courses = vec![Course::new(); arguments.connections];
    while let Some(read) = readers.join_next().await {
        let (index, course) = read??;
        courses[index] = course;
    }
    Ok(Measured { courses, took, processor: processor.elapsed() })
}

/// Writes this many bytes, or until the end.
async fn write(
    mut to: impl AsyncWrite + Unpin,
    buffer: usize,
    mut bytes: u64,
    end: Option<Instant>,
) -> Result<()> {
    let buffer = vec![7; buffer];
    while bytes > 0 {
        let part = &buffer[..usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len())];
        let written = match end {
            None => to.write(part).await?,
            Some(end) => match tokio::time::timeout_at(end.into(), to.write(part)).await {
                Ok(written) => written?,
                Err(_) => break,
            },
        };
        bytes -= written as u64;
    }
    Ok(())
}

/// Reads to the end, and returns how many bytes were received by each time.
async fn read(mut from: TcpStream, buffer: usize, begin: Instant) -> Result<Course> {
    let (mut buffer, mut bytes, mut course) = (vec![0; buffer], 0, Course::new());
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(course),
            read => bytes += read as u64,
        }
        course.push((begin.elapsed(), bytes));
    }
}
