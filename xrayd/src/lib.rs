//! xrayd
