//! xray-trace
