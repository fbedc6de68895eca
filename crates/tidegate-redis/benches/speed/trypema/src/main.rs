//! Decisions a second of trypema over a server at the socket `SOCKET`, printed like those of
//! `peers.js`.

use std::error::Error;
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{BucketSize, RateLimit, RateLimiterBuilder, WindowSize};

const ROUND: Duration = Duration::from_millis(300);

/// The microseconds of the server's processor so far.
async fn cpu(connection: &mut ConnectionManager) -> Result<f64, Box<dyn Error>> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let seconds = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| text.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    Ok((seconds("used_cpu_sys:") + seconds("used_cpu_user:")) * 1e6)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = redis::Client::open(format!("redis+unix://{}", std::env::var("SOCKET")?))?;
    let mut connection = client.get_connection_manager().await?;
    let provider = RedisRateLimiterProvider::builder(connection.clone())
        .window_size(WindowSize::minutes_or_panic(1))
        .bucket_size(BucketSize::milliseconds_or_panic(10))
        .build()?;
    let (key, rate) = (RedisKey::try_from("key".to_owned())?, RateLimit::per_second_or_panic(1e7));
    for tasks in [1, 100] {
        let mut best = [0.0; 3];
        for _ in 0..7 {
            let (before, begun) = (cpu(&mut connection).await?, Instant::now());
            let task = || async {
                let (mut times, mut last) = (Vec::new(), Instant::now());
                while last.duration_since(begun) < ROUND {
                    provider.absolute().inc(&key, &rate, 1).await?;
                    times.push(last.elapsed().as_secs_f64() * 1e6);
                    last = Instant::now();
                }
                Ok::<_, trypema::TrypemaError>(times)
            };
            let times = futures_util::future::try_join_all((0..tasks).map(|_| task())).await?;
            let took = begun.elapsed().as_secs_f64();
            let spent = cpu(&mut connection).await? - before;
            let mut times: Vec<f64> = times.into_iter().flatten().collect();
            times.sort_unstable_by(f64::total_cmp);
            let calls = times.len() as f64;
            if calls / took > best[0] {
                best = [calls / took, times[times.len() / 2], spent / calls];
            }
        }
        println!("trypema {tasks} {:.3} {:.3} {:.3}", best[0], best[1], best[2]);
    }
    Ok(())
}
