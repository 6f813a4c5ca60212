//! Numbers of the daemon and its sessions over HTTP, for Prometheus and whatever reads the same formats.
//!
//! ```text
//!  sessions ─► Metering (books) ─► families ─► exposition ─► server ─► whoever connects
//!                                      ▲
//!  /proc/self ─► own_use ──────────────┘
//! ```
//!
//! Off unless an address is named. Asking is cheap: nothing of a target is read, no drain and no control thread is asked. There is no
//! authorisation; `docs/threat-model.md` says what that means.

mod address;
mod exposition;
mod families;
mod negotiation;
mod own_use;
mod server;

use std::{io, net::TcpListener};

pub use address::{MetricsAddress, NotAnAddress};
pub(crate) use server::serve;

/// Metrics cannot be served there.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}")]
pub struct BindError {
    address: MetricsAddress,
    source: io::Error,
}

/// Listens at `address`.
///
/// # Errors
/// What the system says.
pub(crate) fn bind(address: MetricsAddress) -> Result<TcpListener, BindError> {
    let bound = TcpListener::bind(address.socket()).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| BindError { address, source })
}

/// Says where metrics are, and whether others can see them.
pub(crate) fn announce(listener: &TcpListener) {
    let address = match listener.local_addr() {
        Ok(address) => MetricsAddress::from(address),
        Err(error) => {
            return tracing::warn!(%error, "metrics are served at an address that is not known");
        }
    };
    if address.is_open() {
        tracing::warn!(%address, "metrics are served to whoever can reach this address: names of programs and functions are in them");
    } else {
        tracing::info!(%address, "serving metrics");
    }
}
