//! How many decisions per second a process makes with leases, with one task and with a hundred
//! tasks.
//!
//! `cargo run --release -p tidegate-redis --example leased -- redis://127.0.0.1`

use std::time::{Duration, Instant};

use tidegate::AnyLimiter;
use tidegate_redis::Store;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("the address of a server, as redis://127.0.0.1")?;
    let store = Store::open(&address)?;
    store.check().await?;
    for tasks in [1, 100] {
        let limiter: AnyLimiter = store
            .limiter(format!("leased-{tasks}"))
            .limit("calls", "token_bucket 20000000/s burst 20000000")
            .leased()
            .build()?
            .into();
        let (began, before) = (Instant::now(), store.counts().answered);
        let each = |limiter: AnyLimiter| async move {
            let (mut granted, mut refused) = (0_u64, 0_u64);
            while began.elapsed() < Duration::from_secs(5) {
                for _ in 0..100 {
                    match limiter.acquire_now(1).await {
                        Ok(_) => granted += 1,
                        Err(_) => refused += 1,
                    }
                }
                tokio::task::yield_now().await;
            }
            (granted, refused)
        };
        let running: Vec<_> = (0..tasks).map(|_| tokio::spawn(each(limiter.clone()))).collect();
        let (mut granted, mut refused) = (0, 0);
        for task in running {
            let (more, without) = task.await?;
            granted += more;
            refused += without;
        }
        let seconds = began.elapsed().as_secs_f64();
        let trips = store.counts().answered - before;
        println!(
            "{tasks:>3} tasks: {:.2} million decisions/s, {refused} refused, {:.6} trips a permit",
            (granted + refused) as f64 / seconds / 1e6,
            trips as f64 / granted as f64,
        );
    }
    println!("{:?}", store.lease_counts());
    Ok(())
}
