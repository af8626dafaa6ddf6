//! The real engine with the demo model.

mod home_assistant;
