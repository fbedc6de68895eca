//! An axum server with a plan for each API key, read from a TOML file.
//!
//! ```sh
//! cargo run --release -p tidegate-tower --example axum_api
//! curl -i -H 'x-api-key: key-of-bob' http://127.0.0.1:3000/
//! ```
//!
//! A response reports the limit in its headers. A request above the plan gets status 429, a request
//! without a known key gets 401. The plans can be changed at run time:
//!
//! ```sh
//! sed 's|5/s burst 10|1/s burst 1|' crates/tidegate-tower/examples/axum_api/plans.toml |
//!     curl --data-binary @- -H 'authorization: Bearer secret' http://127.0.0.1:3000/admin/plans
//! ```

mod app;
mod plans;

use tokio::net::TcpListener;

use self::plans::{PLANS, Plans};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".into());
    let text = arguments.next().map_or(Ok(PLANS.to_owned()), std::fs::read_to_string)?;

    let app = app::new(Plans::read(&text)?);
    let listener = TcpListener::bind(address).await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
