package store;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Optional;

/** Keeps people in the database. */
public class UserRepository {
    private final Connection connection;

    public UserRepository(Connection connection) {
        this.connection = connection;
    }

    public Optional<User> findByEmail(String email) throws SQLException {
        String sql = "SELECT id, email, name FROM users WHERE lower(email) = lower(?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setString(1, email);
            ResultSet rows = statement.executeQuery();
            return rows.next() ? Optional.of(User.from(rows)) : Optional.empty();
        }
    }

    public void deleteInactive(int days) throws SQLException {
        String sql = "DELETE FROM users WHERE last_seen < now() - make_interval(days => ?)";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setInt(1, days);
            statement.executeUpdate();
        }
    }
}
