//! [`RateLimit`] as a middleware of `reqwest-middleware`.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error as MiddlewareError, Middleware, Next, Result};

use crate::error::Error;
use crate::limit::RateLimit;

/// Add it after a middleware that retries. Then each attempt waits its turn and costs its permits.
///
/// A refusal is an error of the middleware. Its reason, an [`AllRefusal`](tidegate::AllRefusal), is
/// in the chain of the error:
/// ```
/// use reqwest_middleware::Error;
/// use tidegate::AllRefusal;
///
/// fn refusal(error: &Error) -> Option<&AllRefusal> {
///     let Error::Middleware(error) = error else { return None };
///     error.chain().find_map(|cause| cause.downcast_ref())
/// }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "middleware")))]
#[async_trait::async_trait]
impl Middleware for RateLimit {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let ticket = self
            .begin(&mut request)
            .await
            .map_err(|refusal| MiddlewareError::middleware(Error::Refused(refusal)))?;
        let response = next.run(request, extensions).await?;
        Ok(ticket.end(response))
    }
}
