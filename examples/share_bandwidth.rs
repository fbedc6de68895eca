//! Two transfers share 500,000 bytes per second. Each takes the permits that are available, instead
//! of waiting for the permits of a whole buffer. So both continue at half the rate, and the longer
//! one has the whole rate once the shorter one has ended. It prints how long both took, and fails
//! if they were faster than the limit: `cargo run --example share_bandwidth`

use std::time::{Duration, Instant};

use tidegate::{Rate, RateLimiter, Request, TokenBucket};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

type Error = Box<dyn std::error::Error + Send + Sync>;

const PER_SECOND: u32 = 500_000;
const BURST: u32 = 16_384;
/// A transfer waits for this many bytes if fewer are available.
const LEAST: u32 = 1_024;

async fn transfer(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    bandwidth: &RateLimiter<TokenBucket>,
) -> Result<(), Error> {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = from.read(&mut buffer).await?;
        let mut rest = &buffer[..read];
        if rest.is_empty() {
            return Ok(to.flush().await?);
        }
        while !rest.is_empty() {
            let most = u32::try_from(rest.len())?;
            let grant = bandwidth.acquire_many(Request::permits(most).at_least(LEAST.min(most))).await?;
            let (now, later) = rest.split_at(grant.permits() as usize);
            to.write_all(now).await?;
            rest = later;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let bandwidth = RateLimiter::new(TokenBucket::new(Rate::per_second(PER_SECOND.into()), BURST));
    let begin = Instant::now();
    let timed = async |bytes| {
        transfer(tokio::io::repeat(7).take(bytes), tokio::io::sink(), &bandwidth).await?;
        println!("{bytes} bytes in {:.2?}", begin.elapsed());
        Ok::<(), Error>(())
    };
    tokio::try_join!(timed(200_000), timed(600_000))?;
    // The burst is available at the start, and a late grant counts from its due time, 10 ms
    // earlier.
    let most = |span: Duration| f64::from(BURST) + f64::from(PER_SECOND) * (span.as_secs_f64() + 0.01);
    assert!(800_000.0 <= most(begin.elapsed()), "faster than the limit");
    Ok(())
}
