//! Where metrics are served: an address and a port, or a port of the loopback address.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

/// A place to serve metrics at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricsAddress(SocketAddr);

/// It is neither a port nor an address with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("neither a port nor an address with a port, such as 127.0.0.1:9464 or [::1]:9464")]
pub struct NotAnAddress;

// === impl MetricsAddress ===

impl MetricsAddress {
    /// What to bind.
    pub fn socket(self) -> SocketAddr {
        self.0
    }

    /// Whether other machines may reach it.
    pub fn is_open(self) -> bool {
        !self.0.ip().to_canonical().is_loopback()
    }
}

impl FromStr for MetricsAddress {
    type Err = NotAnAddress;

    /// A port alone is one of the loopback address: who wants to be reached from elsewhere says so.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(port) = text.parse::<u16>() {
            let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
            return Ok(Self(SocketAddr::new(loopback, port)));
        }
        let address = text.parse().map_err(|_| NotAnAddress)?;
        Ok(Self(address))
    }
}

impl From<SocketAddr> for MetricsAddress {
    fn from(address: SocketAddr) -> Self {
        Self(address)
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_machine_only() {
        for (text, expected, open) in [
            ("9464", "127.0.0.1:9464", false),
            ("0", "127.0.0.1:0", false),
            ("127.0.0.1:9464", "127.0.0.1:9464", false),
            ("127.9.9.9:1", "127.9.9.9:1", false),
            ("[::1]:9464", "[::1]:9464", false),
            ("[::ffff:127.0.0.1]:9464", "[::ffff:127.0.0.1]:9464", false),
            ("0.0.0.0:9464", "0.0.0.0:9464", true),
            ("[::]:9464", "[::]:9464", true),
            ("192.0.2.1:80", "192.0.2.1:80", true),
        ] {
            let address: MetricsAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), expected);
            assert_eq!(address.is_open(), open, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "port",
            "65536",
            "-1",
            "localhost:9464",
            "127.0.0.1",
            ":9464",
            "*:9464",
            "9464 ",
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err().to_string();
            assert!(error.starts_with("neither a port"), "{text}: {error}");
        }
    }
}
